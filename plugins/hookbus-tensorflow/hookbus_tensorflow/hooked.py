"""Calls hooks of TensorFlow around the runs of a plain session of TensorFlow."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import tensorflow as tf

from hookbus_tensorflow.context import merged

_train = tf.compat.v1.train


class HookedSession:
    """Runs a ``tf.compat.v1.Session`` with hooks of TensorFlow, without any bus.

    Each run calls every ``before_run``, runs the session once for all, and calls every
    ``after_run``, as the sessions of TensorFlow do. It calls no other method of the hooks.

    Args:
        sess: the session.
        hooks: the hooks, in this order.
    """

    def __init__(self, sess: Any, hooks: Iterable[Any]) -> None:
        self._sess = sess
        self._hooks = tuple(hooks)
        self._should_stop = False

    @property
    def graph(self) -> Any:
        """The ``tf.Graph`` of the session."""
        return self._sess.graph

    def should_stop(self) -> bool:
        """Return whether a hook has asked to stop."""
        return self._should_stop

    def run(
        self,
        fetches: Any,
        feed_dict: Mapping[Any, Any] | None = None,
        options: Any = None,
        run_metadata: Any = None,
    ) -> Any:
        """Run once, with all that the hooks ask for.

        Args:
            fetches: as in ``tf.compat.v1.Session.run``.
            feed_dict: as there; it is not changed.
            options: as there; the options of hooks are merged into it.
            run_metadata: as there.

        Raises:
            RuntimeError: a hook has asked to stop before, or two parties feed one tensor.
        """
        if self._should_stop:
            raise RuntimeError("Run called even after should_stop requested.")
        context = _train.SessionRunContext(
            original_args=_train.SessionRunArgs(fetches, feed_dict), session=self._sess
        )
        options = options or tf.compat.v1.RunOptions()
        wanted: dict[Any, Any] = {"caller": fetches}
        feeds: dict[Any, Any] = {}
        for hook in self._hooks:
            request = hook.before_run(context)
            if request is None:
                continue
            if request.fetches is not None:
                wanted[hook] = request.fetches
            if request.feed_dict:
                _refuse_common(feeds, request.feed_dict, "two hooks")
                feeds.update(request.feed_dict)
            if request.options:
                merged([request.options], options)
        if feeds and feed_dict:
            _refuse_common(feeds, feed_dict, "a SessionRunHook and user")
            feeds.update(feed_dict)
        run_metadata = run_metadata or tf.compat.v1.RunMetadata()
        values = self._sess.run(wanted, feeds or feed_dict, options, run_metadata)
        for hook in self._hooks:
            results = values.get(hook)
            hook.after_run(context, _train.SessionRunValues(results, options, run_metadata))
        self._should_stop = self._should_stop or context.stop_requested
        return values["caller"]


def _refuse_common(feeds: Mapping[Any, Any], more: Mapping[Any, Any], who: str) -> None:
    """Raise an error if two parties feed one tensor."""
    keys = {_key(feed) for feed in feeds}
    common = [feed for feed in more if _key(feed) in keys]
    if common:
        raise RuntimeError(f"Same tensor is fed by {who}. Conflict(s): {common}")


def _key(feed: Any) -> Any:
    return feed.ref() if hasattr(feed, "ref") else feed
