"""Tests that modules are saved and restored, and that hooks can read and assign them."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch
from hookbus_torch.library import TorchLibrary
from torch import nn

from hookbus import GraphError, UsageError
from hookbus.errors import NoValueYetError

LIBRARY = TorchLibrary()


class Net(nn.Module):
    """Two layers, with a normalization and dropout in between."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(3, 4)
        self.norm = nn.BatchNorm1d(4)
        self.drop = nn.Dropout(0.5)
        self.fc2 = nn.Linear(4, 2)

    def forward(self, x):
        return self.fc2(self.drop(self.norm(self.fc1(x))))


@pytest.fixture
def net():
    torch.manual_seed(1)
    return Net()


def test_the_state_is_that_of_the_module_and_is_not_copied(net):
    state = LIBRARY.tracked("model", net).get()
    assert list(state) == list(net.state_dict())
    assert state["fc1.weight"].data_ptr() == net.fc1.weight.data_ptr()


def test_it_is_restored_in_place(net):
    weight, before = net.fc1.weight, {k: v.clone() for k, v in net.state_dict().items()}
    tracked = LIBRARY.tracked("model", net)
    net(torch.ones(5, 3))
    with torch.no_grad():
        weight.zero_()
    assert tracked.put(before) is net
    assert net.fc1.weight is weight
    assert all(torch.equal(v, before[k]) for k, v in net.state_dict().items())


@pytest.mark.parametrize(
    "tensor",
    [torch.zeros(1).expand(3), torch.zeros(5).as_strided((3, 3), (1, 1))],
    ids=["expand", "as_strided"],
)
def test_what_shares_memory_inside_is_refused(tensor):
    """It could be saved, and PyTorch cannot write into it."""
    net = nn.Linear(2, 2)
    net.register_buffer("scale", tensor)
    frozen = nn.Module()
    frozen.weight = nn.Parameter(tensor, requires_grad=False)
    told = r"elements of 'it.*' share memory, .* clone\(\) the tensor"
    for thing in (net, frozen, tensor):
        with pytest.raises(UsageError, match=f"cannot track 'it': the {told}"):
            LIBRARY.tracked("it", thing)
    net.register_buffer("scale", tensor, persistent=False)  # which is not saved
    assert "scale" not in LIBRARY.tracked("it", net).get()
    for view in (torch.zeros(4, 6).T[::2, 1::3], torch.zeros(2, 0).expand(2, 0)):
        assert LIBRARY.tracked("it", view).value is view


def test_a_double_model_takes_no_checkpoint_of_a_float_one(net):
    state = {k: v.clone() for k, v in LIBRARY.tracked("model", net).get().items()}
    (first, *_) = LIBRARY.tracked("model", net.double()).faults(state)
    assert first == (
        "'model.fc1.weight' is a tensor of shape (4, 3) and dtype float64 here and a "
        "tensor of shape (4, 3) and dtype float32 in the checkpoint"
    )


def test_another_architecture_is_told_by_names_and_shapes(net):
    state = dict(LIBRARY.tracked("model", net).get())
    state["head.weight"] = state.pop("fc2.weight")
    state["fc1.weight"] = torch.zeros(4, 7)
    assert list(LIBRARY.tracked("model", net).faults(state)) == [
        "'model.fc1.weight' is a tensor of shape (4, 3) and dtype float32 here and a "
        "tensor of shape (4, 7) and dtype float32 in the checkpoint",
        "'model.fc2.weight' is only in the module (the checkpoint has 'model.head.weight')",
        "'model.head.weight' is only in the checkpoint (the module has 'model.fc2.weight')",
    ]
    assert list(LIBRARY.tracked("model", net).faults(3)) == [
        "'model' is a module here and a int in the checkpoint"
    ]


def test_a_wholly_other_architecture_is_told_in_a_few_lines():
    other = nn.Sequential(*[nn.Linear(2, 2) for _ in range(50)])
    faults = list(LIBRARY.tracked("model", nn.ModuleDict({"a": other})).faults({}))
    assert len(faults) == 7
    assert faults[-1] == "94 more names of 'model' are only in the module"


def test_a_module_whose_values_are_not_made_yet_is_refused():
    lazy, meta = nn.Sequential(nn.LazyLinear(3)), nn.Linear(2, 2, device="meta")
    with pytest.raises(
        UsageError, match=r"'model.0.weight' .* the first batch .* call the"
    ):
        LIBRARY.tracked("model", lazy)
    with pytest.raises(UsageError, match=r"'model.weight' is on the device 'meta'"):
        LIBRARY.tracked("model", meta)
    lazy(torch.ones(1, 2))
    assert LIBRARY.tracked("model", lazy).get()["0.weight"].shape == (3, 2)


def test_a_module_that_reads_the_version_of_a_state_gets_its_own():
    seen = []

    class Versioned(nn.Linear):
        _version = 3

        def _load_from_state_dict(self, state, prefix, metadata, *rest):
            seen.append(metadata.get("version"))
            super()._load_from_state_dict(state, prefix, metadata, *rest)

    tracked = LIBRARY.tracked("model", Versioned(2, 1))
    tracked.put(dict(tracked.get()))
    assert seen == [3]


WRAPPED = {
    "bare": lambda net: net,
    "compiled": lambda net: torch.compile(net, backend="eager"),
    "parallel": nn.DataParallel,
    "both": lambda net: torch.compile(nn.DataParallel(net), backend="eager"),
}


@pytest.mark.parametrize("wrap", WRAPPED.values(), ids=WRAPPED)
def test_wrappers_leave_no_trace_in_names(net, wrap):
    bare, wrapped = LIBRARY.tracked("m", net), LIBRARY.tracked("m", wrap(net))
    assert list(wrapped.get()) == list(bare.get())
    assert wrapped.live().keys() == bare.live().keys()
    assert not list(wrapped.faults(bare.get()))
    wrapped.put({k: torch.zeros_like(v) for k, v in bare.get().items()})
    assert net.fc2.bias.tolist() == [0, 0]


def test_hooks_see_parameters_buffers_gradients_and_outputs(net):
    names = set(LIBRARY.tracked("model", net).live())
    assert {".fc1.weight", ".norm.running_mean", ".fc2.bias:grad", ".fc1:output"} <= names
    assert {":output", ":grad_norm"} <= names
    assert ".norm.running_mean:grad" not in names


def test_a_parameter_that_a_module_does_without_has_no_name():
    live = LIBRARY.tracked("model", nn.Linear(3, 2, bias=False)).live()
    of_module = {":output", ":grad_norm", ":grads", ":parameters"}
    assert set(live) == {*of_module, ".weight", ".weight:grad"}


def test_tied_parameters_have_every_name(net):
    net.fc3 = nn.Linear(4, 2)
    net.fc3.weight = net.fc2.weight
    tracked = LIBRARY.tracked("model", net)
    tracked.live()[".fc3.weight"].put(torch.ones(2, 4))
    assert tracked.live()[".fc2.weight"].get().sum() == 8
    assert {"fc2.weight", "fc3.weight"} <= tracked.get().keys()


def test_a_parameter_is_read_and_written_in_place(net):
    live = LIBRARY.tracked("model", net).live()[".fc2.bias"]
    bias = net.fc2.bias
    live.put([1.5, 2.5])
    assert net.fc2.bias is bias
    assert live.get().tolist() == [1.5, 2.5]
    assert not live.get().requires_grad


def test_a_value_of_another_shape_is_refused_and_changes_nothing(net):
    live = LIBRARY.tracked("model", net).live()[".fc2.bias"]
    before = net.fc2.bias.tolist()
    with pytest.raises(GraphError, match=r"'model.fc2.bias' is a tensor of shape \(2,\)"):
        live.put([1.0, 2.0, 3.0])
    with pytest.raises(GraphError, match=r"'model.fc2.bias' is a tensor of shape"):
        live.put("text")
    assert net.fc2.bias.tolist() == before


def test_a_gradient_is_there_after_backward(net):
    live = LIBRARY.tracked("model", net).live()
    with pytest.raises(
        NoValueYetError, match=r"there was no gradient\. Call backward"
    ) as told:
        live[".fc1.weight:grad"].get()
    assert told.value.node == "model.fc1.weight:grad"
    with pytest.raises(NoValueYetError, match="'model:grad_norm' has no value"):
        live[":grad_norm"].get()
    net(torch.ones(5, 3)).sum().backward()
    assert torch.equal(live[".fc1.weight:grad"].get(), net.fc1.weight.grad)
    flat = torch.cat([p.grad.reshape(-1) for p in net.parameters()])
    torch.testing.assert_close(live[":grad_norm"].get(), flat.norm())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_the_norm_of_half_gradients_may_be_beyond_their_dtype(dtype):
    layer = nn.Linear(10, 1, bias=False, dtype=dtype)
    layer.weight.grad = torch.full((1, 10), 3e4, dtype=dtype)
    norm = LIBRARY.tracked("model", layer).live()[":grad_norm"].get()
    expected = layer.weight.grad.double().norm().float()
    torch.testing.assert_close(norm, expected)


def test_sparse_gradients_count_in_the_norm_and_arrive_dense():
    layer = nn.Embedding(5, 2, sparse=True)
    layer(torch.tensor([1, 1, 3])).sum().backward()
    live = LIBRARY.tracked("model", layer).live()
    torch.testing.assert_close(live[":grad_norm"].get(), torch.tensor(10.0).sqrt())
    (array,) = LIBRARY.on_host([live[".weight:grad"].get()])
    assert array.sum(axis=1).tolist() == [0, 4, 0, 2, 0]


def test_an_output_stays_what_it_was_though_a_later_module_works_in_place():
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU(inplace=True))
    live = LIBRARY.tracked("model", model).live()[".0:output"]
    live.capture()
    x = torch.randn(9, 2)
    model(x)
    torch.testing.assert_close(live.get(), model[0](x))


def test_an_output_is_kept_until_the_last_one_who_asks_ends(net):
    live = LIBRARY.tracked("model", net).live()[".fc1:output"]
    first, second = live.capture(), live.capture()
    net(torch.ones(5, 3))
    first()
    assert live.get().shape == (5, 4)
    assert net.fc1._forward_hooks
    second()
    assert not net.fc1._forward_hooks


def test_an_output_is_kept_only_while_somebody_asks(net):
    live = LIBRARY.tracked("model", net).live()[".fc1:output"]
    net(torch.ones(5, 3))
    with pytest.raises(NoValueYetError, match="the module was not called in the step"):
        live.get()
    release = live.capture()
    net(torch.ones(5, 3))
    assert live.get().shape == (5, 4)
    assert not live.get().requires_grad
    release()
    assert not net.fc1._forward_hooks
    net(torch.zeros(5, 3))
    live.get()  # the value from before, once: it is not held any longer
    with pytest.raises(NoValueYetError):
        live.get()


def test_an_output_of_several_parts_keeps_its_form():
    lstm = nn.LSTM(2, 3)
    live = LIBRARY.tracked("lstm", lstm).live()[":output"]
    live.capture()
    lstm(torch.ones(4, 1, 2))
    output, (hidden, _) = live.get()
    assert (output.shape, hidden.shape) == ((4, 1, 3), (1, 1, 3))


class Parts(NamedTuple):
    """An output of several named parts."""

    total: torch.Tensor
    rest: dict[str, torch.Tensor]


def test_the_parts_of_an_output_hold_no_step_in_memory():
    class Model(nn.Linear):
        def forward(self, x):
            y = super().forward(x)
            return Parts(y.sum(), {"rows": y})

    model = Model(2, 1)
    live = LIBRARY.tracked("model", model).live()[":output"]
    live.capture()
    model(torch.ones(3, 2))
    output = live.get()
    assert isinstance(output, Parts)
    assert not output.total.requires_grad
    assert not output.rest["rows"].requires_grad


@pytest.mark.parametrize(
    "wrap", [lambda net: torch.compile(net, backend="eager"), nn.DataParallel]
)
def test_a_wrapped_model_gives_its_own_output_at_any_time(net, wrap):
    wrapped = wrap(net)
    wrapped(torch.ones(5, 3))
    live = LIBRARY.tracked("model", wrapped).live()[":output"]
    for _ in range(2):
        release = live.capture()
        result = wrapped(torch.ones(5, 3))
        assert torch.equal(live.get(), result)
        release()
        assert not wrapped._forward_hooks


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # of PyTorch's own look
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_compiled_model_gives_inner_outputs_that_are_asked_for_at_first(net, backend):
    net.drop.p = 0.0
    compiled = torch.compile(net, backend=backend)
    live = LIBRARY.tracked("model", compiled).live()
    for _ in range(2):  # due, not due, due again
        release = live[".fc1:output"].capture()
        x = torch.randn(5, 3)
        compiled(x)
        torch.testing.assert_close(live[".fc1:output"].get(), net.fc1(x))
        release()
        compiled(x)


@pytest.mark.parametrize(
    "compile_", [torch.compile, "in place"], ids=["wrapped", "in place"]
)
def test_a_compiled_model_says_how_to_get_an_inner_output(net, compile_):
    if compile_ == "in place":
        net.compile(backend="eager")
        compiled = net
    else:
        compiled = torch.compile(net, backend="eager")
    compiled(torch.ones(5, 3))
    live = LIBRARY.tracked("model", compiled).live()
    live[".fc1:output"].capture()
    compiled(torch.ones(5, 3))
    with pytest.raises(NoValueYetError, match="Ask for it in the first step, or return it"):
        live[".fc1:output"].get()


def test_evaluating_leaves_modes_statistics_and_gradients_alone(net):
    net.norm.eval()
    tracked = LIBRARY.tracked("model", net)
    before = {k: v.clone() for k, v in net.state_dict().items()}
    with tracked.evaluating():
        assert not any(part.training for part in net.modules())
        outputs = [net(torch.ones(5, 3)) for _ in range(2)]
    assert torch.equal(*outputs)
    assert not outputs[0].requires_grad
    assert torch.is_grad_enabled()
    assert [part.training for part in net.modules()] == [True, True, False, True, True]
    assert all(torch.equal(v, before[k]) for k, v in net.state_dict().items())


def test_evaluating_reaches_through_torch_compile(net):
    net.norm.eval()
    with LIBRARY.tracked("model", torch.compile(net, backend="eager")).evaluating():
        assert not any(part.training for part in net.modules())
    assert [part.training for part in net.modules()] == [True, True, False, True, True]


def test_a_module_that_acts_on_eval_may_undo_it():
    class Merging(nn.Linear):
        merged = False

        def train(self, mode=True):
            self.merged = not mode
            return super().train(mode)

    model = Merging(2, 1)
    with LIBRARY.tracked("model", model).evaluating():
        assert model.merged
    assert not model.merged
    model.eval()
    with LIBRARY.tracked("model", model).evaluating():
        pass
    assert model.merged


def test_modes_are_put_back_after_an_error(net):
    with pytest.raises(OSError, match="disk"), LIBRARY.tracked("model", net).evaluating():
        raise OSError("disk")
    assert net.drop.training


def test_one_module_is_tracked_once(net):
    with pytest.raises(UsageError, match="'model' and 'net' are the same module"):
        LIBRARY.check({"model": net, "net": torch.compile(net, backend="eager")})
    with pytest.raises(UsageError, match=r"'part' is a part of 'model' \('model.fc1'\)"):
        LIBRARY.check({"part": net.fc1, "model": net})
    LIBRARY.check({"model": net, "ema": torch.optim.swa_utils.AveragedModel(net)})
