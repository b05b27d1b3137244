"""TensorFlow's rules for Estimator.predict: a generator, and what each next() does."""

from __future__ import annotations

import numpy as np
import pytest

from hookbus import AbortedError, Estimator, SessionRunHook
from tests.support.estimating import RUN, StopsHook, WatchHook, estimator, model, numbers


def predicting(op=None, **fields) -> Estimator:
    """Return a trained Estimator, which predicts what an op gives where there is one."""
    if op is not None:
        fields["predictions"] = lambda graph: graph.op(op, name="own")
    return estimator(**fields).train(numbers(2))


def test_nothing_happens_before_the_first_next():
    """No argument is looked at, no function called; errors come from the first next."""
    made = estimator().predict(5, predict_keys=5, hooks=5, checkpoint_path="nowhere")
    with pytest.raises(TypeError, match="hooks takes a list of hooks"):
        next(made)


def test_the_input_function_is_not_called_before_the_first_next():
    """Then it is."""
    calls = []

    def batches():
        calls.append("called")
        return numbers(2)()

    predictions = predicting().predict(batches)
    assert calls == []
    next(predictions)
    assert set(calls) == {"called"}


def test_there_is_one_run_for_each_batch():
    """A batch's hooks fire when its first example is asked for, and then no more."""
    hook = WatchHook()
    predictions = predicting().predict(numbers(2), hooks=[hook])
    for batch in (1, 2):
        for _ in range(2):
            assert next(predictions) == {"tenfold": 10 * batch}
            assert hook.events.count("after 2") == batch
    assert "end" not in hook.events


def test_the_end_of_the_input_is_found_in_one_more_run():
    """Its before_run comes, its after_run does not; then comes end."""
    hook = WatchHook()
    predictions = predicting().predict(numbers(2), hooks=[hook])
    assert len(list(predictions)) == 4
    run = ["before", "after 2"]
    assert hook.events == ["begin", "created 2", *run, *run, "before", "end", "finished"]


def test_a_hook_can_stop_it():
    """The batch of that run is still yielded."""
    predictions = predicting().predict(numbers(9), hooks=[StopsHook(2)])
    assert [p["tenfold"] for p in predictions] == [10, 10, 20, 20]


def test_the_order_of_the_hooks(monkeypatch):
    """The caller's, then the model's; no plugin is added."""

    class OwnHook(SessionRunHook):
        pass

    monkeypatch.setenv("HOOKBUS_DISABLE_PLUGIN_AUTOLOAD", "1")
    hook = WatchHook()
    fields = {"prediction_hooks": [OwnHook()], "evaluation_hooks": [StopsHook(1)]}
    list(predicting(**fields).predict(numbers(2), hooks=[hook]))
    assert hook.members == ["watch", "own", "Estimator.predict()"]


def test_rows_of_a_dict_are_dicts():
    """Each has all keys."""
    both = predicting(predictions={"a": "tenfold", "b": "features"})
    rows = list(both.predict(lambda: [np.array([1.0, 2.0])]))
    assert rows == [{"a": 10.0, "b": 1.0}, {"a": 20.0, "b": 2.0}]


def test_rows_of_an_array_are_its_rows():
    """Of whatever shape they are."""
    plain = predicting(lambda features: np.stack([features, features + 1], axis=1))
    assert [row.tolist() for row in plain.predict(numbers(2, first=5))] == [
        [5, 6],
        [5, 6],
        [6, 7],
        [6, 7],
    ]


def test_whole_batches_come_as_they_are():
    """Their lengths may differ."""
    uneven = predicting(predictions={"a": "tenfold", "b": "loss"})
    (batch,) = uneven.predict(numbers(1), yield_single_examples=False)
    assert batch["a"].tolist() == [10, 10]
    assert batch["b"] == 1


def test_rows_of_a_dict_must_agree_in_number():
    """The message names the key that differs."""

    def predictions(graph):
        return {"a": "tenfold", "b": graph.op(lambda features: features[:1], name="b")}

    with pytest.raises(ValueError, match=r"Batch length of .* b has different batch"):
        list(predicting(predictions=predictions).predict(numbers(1)))


@pytest.mark.parametrize("predictions", ["loss", {"a": "loss"}], ids=["array", "dict"])
def test_a_number_has_no_rows(predictions):
    """The message says how whole batches are had."""
    with pytest.raises(ValueError, match=r"has no rows.*yield_single_examples=False"):
        next(predicting(predictions=predictions).predict(numbers(1)))


@pytest.mark.parametrize("keys", [None, [], ""], ids=repr)
def test_without_keys_all_are_predicted(keys):
    """None and nothing are the same."""
    both = predicting(predictions={"a": "tenfold", "b": "features"})
    assert next(both.predict(numbers(1), keys)) == {"a": 10, "b": 1}


@pytest.mark.parametrize("keys", ["b", ["b"], ("b",)], ids=repr)
def test_keys_choose_predictions(keys):
    """Others are not computed; a str is one key."""
    computed = []

    def predictions(graph):
        graph.op(lambda features: computed.append("a"), name="a")
        return {"a": "a", "b": "features", "ab": "tenfold"}

    chosen = predicting(predictions=predictions).predict(numbers(1), keys)
    assert next(chosen) == {"b": 1}
    assert computed == []


def test_keys_are_for_a_dict():
    """The message is TensorFlow's."""
    with pytest.raises(ValueError, match="not valid in case of non-dict predictions"):
        next(predicting(predictions="tenfold").predict(numbers(1), "tenfold"))


def test_an_unknown_key_is_an_error():
    """Though another one is known; the message lists those that there are."""
    both = predicting(predictions={"first": "tenfold", "second": "features"})
    with pytest.raises(ValueError, match=r"'frist'.*'second'; did you mean 'first'"):
        next(both.predict(numbers(1), ["second", "frist"]))


def test_closed_early_it_ends_as_when_it_is_exhausted():
    """Every hook's end comes."""
    hook = WatchHook()
    predictions = predicting().predict(numbers(9), hooks=[hook])
    next(predictions)
    predictions.close()
    assert hook.events[-3:] == ["after 2", "end", "finished"]


def test_dropped_early_it_ends_as_when_it_is_exhausted():
    """A loop that is left is enough."""
    hook = WatchHook()
    for _ in predicting().predict(numbers(9), hooks=[hook]):
        break
    assert hook.events[-2:] == ["end", "finished"]


def test_an_error_thrown_in_is_told_to_hooks():
    """As one that leaves the block of a session."""
    hook = WatchHook()
    predictions = predicting().predict(numbers(9), hooks=[hook])
    next(predictions)
    with pytest.raises(ZeroDivisionError):
        predictions.throw(ZeroDivisionError("thrown in"))
    assert hook.events[-1] == "failed: thrown in"
    assert "end" not in hook.events


def test_predictions_without_rows_are_told_to_hooks():
    """The session fails by them, though it is not the one who looks at them."""
    hook = WatchHook()
    total = predicting(predictions={"total": "loss"})
    with pytest.raises(ValueError, match="'total' has no rows"):
        list(total.predict(numbers(9), hooks=[hook]))
    assert hook.events[-1].startswith("failed: the prediction 'total' has no rows")
    assert "end" not in hook.events


def test_closed_before_the_first_next_nothing_has_happened():
    """No hook began."""
    hook = WatchHook()
    predicting().predict(numbers(9), hooks=[hook]).close()
    assert hook.events == []


def test_a_model_that_does_not_read_its_input_is_an_error():
    """It would predict for ever."""
    with pytest.raises(ValueError, match=r"predict\(\) would never end: .*read these$"):
        next(predicting(lambda done: np.ones(3)).predict(numbers(2)))


def test_labels_are_not_looked_at():
    """They may come and go, and the model_fn gets none."""
    given = []

    def model_fn(features, labels, mode):
        given.append(labels)
        return model()(features, mode)

    predicting()
    batches = [(np.ones(2), None), (np.ones(2), np.ones(2)), np.ones(2)]
    assert len(list(Estimator(model_fn, RUN).predict(lambda: batches))) == 6
    assert given == [None]


def test_a_checkpoint_can_be_named():
    """It may be older than the newest one."""
    several = estimator(
        config={"save_checkpoints_steps": 1},
        predictions=lambda g: g.op(lambda features, done: features * 0 + done, name="own"),
    ).train(numbers(3))
    for path, done in (None, 3), (RUN / "ckpt-1", 1):
        assert next(several.predict(numbers(1), checkpoint_path=path)) == done


def test_after_a_preemption_no_batch_comes_twice():
    """The input is sent back to where it stood."""

    class FailsHook(SessionRunHook):
        runs = 0

        def before_run(self):
            self.runs += 1
            if self.runs == 3:
                raise AbortedError("gone")

    predictions = predicting().predict(numbers(5), hooks=[FailsHook()])
    assert [p["tenfold"] for p in predictions][::2] == [10, 20, 30, 40, 50]
