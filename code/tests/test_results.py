"""The store of results: whatever happens to a file or to a writer, the message says it and the old result stays."""

import ast
import contextlib
import errno
import functools
import json
import math
import os
import shutil
import signal
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch

from highway import results
from highway.results import COLUMNS, ResultError, Workspace, check, configuration_sha256, fingerprint, load

CONFIGURATION = {
    "name": "tiny", "title": "A tiny one", "threads": 1, "seeds": (0, 1), "rates": (0.1,), "bias": None,
    "networks": ({"kind": "plain", "width": 5}, {"kind": "highway", "width": 5}),
}  # fmt: skip
REMEDY = "highway run tiny"


def make_history(loss: float = 0.1) -> pd.DataFrame:
    """Four rows with numbers that do not print short; one network has no gate."""
    return pd.DataFrame(
        {
            "loss": [loss, loss / 3, math.pi * 1e-17, 1 / 7],
            "accuracy": [0.1, 2 / 3, 0.9, 1.0],
            "split": ["running", "validation", "running", "validation"],
            "epoch": [1, 1, 1, 1],
            "seed": [0, 0, 1, 1],
            "rate": 0.1,
            "gate_bias": [math.nan, math.nan, -2.0, -2.0],
            "width": 5,
            "depth": 2,
            "init": "he",
            "network": ["plain-5", "plain-5", "highway-5", "highway-5"],
        }
    )


def store(folder, loss: float = 0.1, **more):
    with Workspace("tiny", CONFIGURATION, folder) as workspace:
        workspace.checkpoint("final-0", lambda: {"loss": np.array([loss])})
        return workspace.save(
            make_history(loss),
            tables={"tuning": pd.DataFrame({"rate": [0.1, 0.3], "loss": [1 / 3, math.inf], "chosen": [True, False]})},
            arrays={"gates": {"mean": np.linspace(0, 1, 7), "names": np.array(["a", "bc"])}},
            **more,
        )


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch):
    """A killed process loses nothing that the system has taken over; only a power cut would."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


PARSE, CANONICAL, WRITTEN_OUT = functools.cache(ast.parse), results._canonical, {}


def canonical(node) -> str:
    if not isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Assign):
        return CANONICAL(node)
    if node not in WRITTEN_OUT:
        WRITTEN_OUT[node] = CANONICAL(node)
    return WRITTEN_OUT[node]


@pytest.fixture(autouse=True)
def no_code_is_read_twice(monkeypatch):
    """The fingerprint is taken some thousand times here: remember what each file and definition gave."""
    monkeypatch.setattr(results, "ast", SimpleNamespace(**vars(ast) | {"parse": PARSE}))
    monkeypatch.setattr(results, "_canonical", canonical)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The default folder of results, holding one result called tiny."""
    monkeypatch.setenv(results.FOLDER_VARIABLE, str(tmp_path / "results"))
    store(tmp_path / "results")
    return tmp_path / "results"


def first_loss(folder=None) -> float:
    return load("tiny", folder).history["loss"].iloc[0]


def rewrite_record(folder, **changes) -> None:
    """Change the record, with hashes that fit whatever the files now hold."""
    path = folder / "tiny" / "record.json"
    record = json.loads(path.read_text())
    record["files"] = {name: results._sha256((folder / "tiny" / name).read_bytes()) for name in record["files"]}
    path.write_text(json.dumps(record | changes))


# What is stored comes back


def test_everything_comes_back_bit_for_bit(folder):
    weights = {"block.weight": torch.randn(3, 4), "block.bias": torch.tensor([math.pi])}
    store(folder, weights={"net": weights}, networks=[])
    found = load("tiny")
    pd.testing.assert_frame_equal(found.history, make_history()[COLUMNS], check_exact=True, check_dtype=True)
    assert list(found.history.columns) == COLUMNS
    assert found.table("tuning")["loss"].tolist() == [1 / 3, math.inf]
    assert found.table("tuning")["chosen"].tolist() == [True, False]
    np.testing.assert_array_equal(found.arrays("gates")["mean"], np.linspace(0, 1, 7), strict=True)
    assert found.arrays("gates")["names"].tolist() == ["a", "bc"]
    assert found.weights("net").keys() == weights.keys()
    assert all(torch.equal(found.weights("net")[name], tensor) for name, tensor in weights.items())


def test_a_key_that_is_not_stored_names_those_that_are(folder):
    with pytest.raises(ResultError, match=r"has no gaits\.npz: choose one of gates\.npz, history\.csv, tuning\.csv"):
        load("tiny").arrays("gaits")


def test_the_record_says_how_the_result_came_about(folder):
    text = (folder / "tiny" / "record.json").read_text()
    record = json.loads(text)
    assert text == json.dumps(record, indent=1, sort_keys=True) + "\n"
    assert record["configuration"] == json.loads(json.dumps(CONFIGURATION))
    assert (record["name"], record["title"], record["threads"], record["seeds"]) == ("tiny", "A tiny one", 1, [0, 1])
    assert record["versions"]["numpy"] == np.__version__
    assert set(record["files"]) == {"history.csv", "tuning.csv", "gates.npz"}
    assert str(folder) not in text
    assert os.uname().nodename not in record["processor"] if hasattr(os, "uname") else record["processor"]


def test_nothing_but_the_result_is_left(folder):
    assert [path.name for path in folder.iterdir() if not path.name.endswith(".lock")] == ["tiny"]


def test_the_folder_is_the_books_unless_the_variable_names_another(monkeypatch, tmp_path):
    monkeypatch.delenv(results.FOLDER_VARIABLE, raising=False)
    monkeypatch.setattr(results, "PACKAGE", tmp_path / "code" / "highway")
    with pytest.raises(ResultError, match=f"clone the book.* or set {results.FOLDER_VARIABLE}"):
        results.results_folder()
    (tmp_path / "book").mkdir()
    assert results.results_folder() == tmp_path / "book" / "results"
    monkeypatch.setenv(results.FOLDER_VARIABLE, str(tmp_path / "mine"))
    assert results.results_folder() == tmp_path / "mine"


def test_a_result_elsewhere_is_mended_elsewhere(folder, tmp_path):
    with pytest.raises(ResultError, match=rf"run `highway run tiny --out {tmp_path / 'elsewhere'}`"):
        load("tiny", tmp_path / "elsewhere")


def test_every_float_survives_the_table():
    bits = np.random.default_rng(0).integers(0, 2**63, 20_000)
    numbers = bits.view(np.float64)[np.isfinite(bits.view(np.float64))]
    table = pd.DataFrame({"number": numbers})
    pd.testing.assert_frame_equal(results._read_csv(results._csv(table)), table, check_exact=True)


# What is wrong with a stored result


def truncate(folder):
    path = folder / "tiny" / "history.csv"
    path.write_bytes(path.read_bytes()[:-20])


def edit(folder):
    path = folder / "tiny" / "tuning.csv"
    path.write_bytes(path.read_bytes().replace(b"0.3", b"0.4"))


def drop_a_file(folder):
    (folder / "tiny" / "gates.npz").unlink()


def drop_the_result(folder):
    shutil.rmtree(folder / "tiny")


def cut_the_record(folder):
    path = folder / "tiny" / "record.json"
    path.write_bytes(path.read_bytes()[:100])


def record_of_something_else(folder):
    (folder / "tiny" / "record.json").write_text("[1, 2]")


def not_text(folder):
    (folder / "tiny" / "record.json").write_bytes(b"\xff\xfe\x00")


def no_number(folder):
    path = folder / "tiny" / "record.json"
    record = json.loads(path.read_text())
    path.write_text(json.dumps(record | {"wall_seconds": math.nan}))


def later_schema(folder):
    rewrite_record(folder, schema=2)


def field_of_a_wrong_kind(folder):
    rewrite_record(folder, threads="one")


def unknown_field(folder):
    rewrite_record(folder, mood="good")


def other_name(folder):
    rewrite_record(folder, name="huge")


def other_configuration(folder):
    rewrite_record(folder, configuration={"name": "tiny", "rates": [0.2], "networks": []})


def networks_of(*networks):
    """The configuration lists these instead, and has the hash that it should have."""

    def damage(folder):
        configuration = json.loads((folder / "tiny" / "record.json").read_text())["configuration"]
        configuration["networks"] = list(networks)
        rewrite_record(
            folder, configuration=configuration, configuration_sha256=configuration_sha256(configuration)
        )  # fmt: skip

    return damage


def no_networks(folder):
    configuration = {"name": "tiny", "rates": [0.2]}
    rewrite_record(folder, configuration=configuration, configuration_sha256=configuration_sha256(configuration))


def wrong_hash(folder):
    path = folder / "tiny" / "record.json"
    record = json.loads(path.read_text())
    record["files"]["gates.npz"] = "0" * 64
    path.write_text(json.dumps(record))


def file_outside(folder):
    path = folder / "tiny" / "record.json"
    record = json.loads(path.read_text())
    record["files"]["../secret"] = "0" * 64
    path.write_text(json.dumps(record))


def other_history(*changes):
    def damage(folder):
        path = folder / "tiny" / "history.csv"
        text = path.read_text()
        for before, after in changes:
            assert before in text
            text = text.replace(before, after, 1)
        path.write_text(text)
        rewrite_record(folder)

    return damage


def no_rows(folder):
    path = folder / "tiny" / "history.csv"
    path.write_text(path.read_text().splitlines()[0] + "\n")
    rewrite_record(folder)


def empty_history(folder):
    (folder / "tiny" / "history.csv").write_text("")
    rewrite_record(folder)


def a_folder_for_a_file(folder):
    (folder / "tiny" / "gates.npz").unlink()
    (folder / "tiny" / "gates.npz").mkdir()


@pytest.mark.parametrize(
    ("damage", "state", "file", "what"),
    [
        (truncate, "damaged", "history.csv", "SHA-256"),
        (edit, "damaged", "tuning.csv", "SHA-256"),
        (wrong_hash, "damaged", "gates.npz", "not 000000000000"),
        (drop_a_file, "missing", "gates.npz", "is missing"),
        (a_folder_for_a_file, "damaged", "gates.npz", "cannot be read"),
        (drop_the_result, "missing", "record.json", "is missing"),
        (cut_the_record, "damaged", "record.json", "no valid JSON"),
        (not_text, "damaged", "record.json", "no valid JSON"),
        (no_number, "damaged", "record.json", "NaN is no number"),
        (record_of_something_else, "damaged", "record.json", "its schema is None"),
        (later_schema, "damaged", "record.json", "its schema is 2, and this code knows 1"),
        (field_of_a_wrong_kind, "damaged", "record.json", "threads: 'one' is not of type 'integer'"),
        (unknown_field, "damaged", "record.json", "'mood' was unexpected"),
        (other_name, "damaged", "record.json", "belongs to experiment 'huge'"),
        (other_configuration, "damaged", "record.json", "configuration does not have the hash"),
        (no_networks, "damaged", "record.json", "configuration: 'networks' is a required property"),
        (networks_of({"width": 5}), "damaged", "record.json",
         "configuration.networks[0]: 'kind' is a required property"),
        (networks_of({"kind": "plain"}, {"kind": None}), "damaged", "record.json",
         "configuration.networks[1].kind: None is not of type 'string'"),
        (networks_of("plain"), "damaged", "record.json", "configuration.networks[0]: 'plain' is not of type 'object'"),
        (networks_of({"kind": "plain"}, {"kind": "recurrent"}), "stale", "record.json",
         "the code that trains and measures its networks has changed since"),
        (file_outside, "damaged", "record.json", "'../secret', which is no file beside it"),
        (other_history(("0.1,0,1,running,0.1,", "0.1,0,1,running,nan,")), "damaged", "history.csv",
         "its loss is not finite in 1 row(s), first at network plain-5, init he, seed 0, epoch 1, split running"),
        (other_history((",0.1\n", ",\n")), "damaged", "history.csv", "its accuracy is not finite in 1 row(s)"),
        (other_history((",0.1\n", ",inf\n")), "damaged", "history.csv", "its accuracy is not finite in 1 row(s)"),
        (other_history((",0.1\n", ",good\n")), "damaged", "history.csv", "its accuracy is not finite in 1 row(s)"),
        (other_history(("init,", "start,"), (",rate", ",speed")), "damaged", "history.csv",
         "it lacks the column init, rate"),
        (other_history((",1.0\n", ",1.0,5,6,7\n")), "damaged", "history.csv", "it is no table"),
        (no_rows, "damaged", "history.csv", "it has no row"),
        (empty_history, "damaged", "history.csv", "it is no table"),
    ],
)  # fmt: skip
def test_a_result_that_is_not_whole_is_refused(folder, damage, state, file, what):
    damage(folder)
    with pytest.raises(ResultError) as caught:
        load("tiny")
    message = str(caught.value)
    assert caught.value.state == state
    assert message.startswith(f"{folder / 'tiny' / file} ")
    assert what in message
    assert message.endswith(f"run `{REMEDY}`")
    assert "\n" not in message
    store(folder, loss=0.5)  # what the message says
    assert first_loss() == 0.5


def test_a_result_of_another_configuration_is_stale(folder):
    assert check("tiny", [CONFIGURATION | {"rates": [0.2]}, CONFIGURATION]).record["name"] == "tiny"
    with pytest.raises(ResultError, match=rf"record\.json is stale.*configuration.*run `{REMEDY}`") as caught:
        check("tiny", [CONFIGURATION | {"rates": [0.2]}])
    assert caught.value.state == "stale"


def test_the_hash_of_a_configuration_does_not_depend_on_the_order_of_its_keys():
    assert configuration_sha256({"a": 1, "b": (2,)}) == configuration_sha256({"b": [2], "a": 1})
    assert configuration_sha256({"a": 1}) != configuration_sha256({"a": 1.5})


# The fingerprint


@pytest.fixture
def source(tmp_path, monkeypatch):
    """A copy of the code that decides a result, for the fingerprint to be taken of."""
    package = tmp_path / "source"
    package.mkdir()
    for name in results.CODE:
        shutil.copy(results.PACKAGE / f"{name}.py", package)
    monkeypatch.setattr(results, "PACKAGE", package)
    return package


def replace_in(path, before: str, after: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert before in text
    path.write_text(text.replace(before, after, 1), encoding="utf-8")


def all_fingerprints() -> dict[str, str]:
    return {kind: fingerprint([kind]) for kind in KINDS}


KINDS = ("highway", "plain", "residual", "free", "fixed")


@pytest.mark.parametrize(
    ("module", "before", "after"),
    [
        ("layers", "torch.lerp(x, h, t)", "torch.lerp(h, x, t)"),
        ("training", "optimizer.zero_grad()\n", "pass\n"),
        ("networks", "torch.relu(self.input", "torch.tanh(self.input"),
        ("data", "0.1307", "0.1308"),
        ("probes", "square().sum()", "abs().sum()"),
        ("experiments", "lr=rate, ", "lr=2 * rate, "),
    ],
)
def test_a_changed_formula_makes_a_result_stale(folder, source, module, before, after):
    assert first_loss() == 0.1
    replace_in(source / f"{module}.py", before, after)
    with pytest.raises(ResultError, match=rf"record\.json is stale: the code that .*run `{REMEDY}`") as caught:
        load("tiny")
    assert caught.value.state == "stale"
    store(folder, loss=0.5)
    assert first_loss() == 0.5


@pytest.mark.parametrize(
    ("kind", "before", "after"),
    [
        ("highway", "torch.lerp(x, h, t)", "torch.lerp(h, x, t)"),
        ("highway", "self.bias[d:] = gate_bias", "self.bias[d:] = 0"),
        ("residual", "return x + super()", "return x - super()"),
        ("free", "self.bias[2 * d :] = -gate_bias", "self.bias[2 * d :] = gate_bias"),
        ("fixed", "math.exp(-self.gate_bias)", "math.exp(self.gate_bias)"),
    ],
)
def test_a_changed_block_concerns_its_own_kind_alone(source, kind, before, after):
    old = all_fingerprints()
    replace_in(source / "layers.py", before, after)
    new = all_fingerprints()
    assert [k for k in KINDS if old[k] != new[k]] == [kind]


def test_a_block_concerns_every_kind_that_is_built_upon_it(source):
    old = all_fingerprints()
    replace_in(source / "layers.py", "return self.act(x @ self.weight.T + self.bias)", "return x @ self.weight.T")
    new = all_fingerprints()
    assert [k for k in KINDS if old[k] != new[k]] == ["plain", "residual", "fixed"]


@pytest.mark.parametrize(
    ("module", "before", "after"),
    [
        ("experiments", "lr=rate, ", "lr=2 * rate, "),  # train_once
        ("experiments", "(-len(self.dataset)", None),  # Batches, in data
        ("experiments", "TensorDataset(*whole[fifth:])", "TensorDataset(*whole)"),  # load_data
        ("experiments", "dataset[start::2]", "dataset[1 - start::2]"),  # reached from load_data
        ("experiments", "use_deterministic_algorithms(True)", "use_deterministic_algorithms(False)"),
        ("experiments", "iloc[-1]", "iloc[0]"),  # _last
        ("probes", "square().sum()", "abs().sum()"),  # gradient_norms
        ("layers", "weight.normal_(0, std)", "weight.normal_(0, 2 * std)"),  # initialise
        ("layers", "math.sqrt(2 / inputs)", "math.sqrt(3 / inputs)"),  # a constant of the module
        ("layers", '"relu": torch.relu', '"relu": torch.tanh'),
        ("layers", 'init: str = "default"):', 'init: str = "he"):'),  # a default
        ("training", "evaluate(0)", "pass"),  # fit
        ("training", "loss.item() * len(labels)", "loss.item()"),  # a method of a class that a function makes
        ("training", '"loss": loss', '"loss": 2 * loss'),  # History.add
        ("data", "torch.randperm(", "torch.arange("),  # Batches
        ("data", "slice(10_000, 60_000)", "slice(10_001, 60_000)"),  # a constant
        ("data", "@functools.cache\n", ""),  # a decorator
        ("layers", "class PlainBlock(nn.Module)", "class PlainBlock(nn.Linear)"),  # a base
        ("networks", "self.output(x)", "self.input(x)"),
        ("training", "@dataclass\n", "@dataclass(eq=False)\n"),
        ("layers", "from torch.nn import functional", "from elsewhere.nn import functional"),
        ("layers", "import math\n", "import cmath as math\n"),
        ("data", "from torchvision.datasets import MNIST", "from torchvision.datasets import FashionMNIST as MNIST"),
    ],
)
def test_what_every_training_run_uses_concerns_every_kind(source, module, before, after):
    if after is None:
        module, before, after = "data", "-(-len(self.dataset)", "(len(self.dataset)"
    old = all_fingerprints()
    replace_in(source / f"{module}.py", before, after)
    new = all_fingerprints()
    same = [kind for kind in KINDS if old[kind] == new[kind]]
    # The default of a plain block's initialisation is code of the blocks that are built upon it
    assert same == (["highway", "free"] if "PlainBlock" in before or '= "default"):' in before else [])


def test_what_no_training_run_uses_concerns_no_kind(source):
    old = all_fingerprints()
    for module, before, after in (
        ("networks", '    "fixed": FixedGateMLP,', '    "fixed": FixedGateMLP,\n    "new": NewMLP,'),
        ("networks", "NETWORKS: dict[str, type[BlockMLP]] =", "class NewMLP(PlainMLP):\n    pass\n\n\nNETWORKS ="),
        ("layers", "import math\n", "import math\nimport statistics\n"),
        ("layers", "class HighwayBlock(", "class NewBlock(nn.Module):\n    act = torch.tanh\n\n\nclass HighwayBlock("),
        (
            "layers",
            "def get_activation(",
            "UNUSED = 3\n\n\ndef unused(x=UNUSED):\n    return x\n\n\ndef get_activation(",
        ),
        ("probes", "return (1 + math.exp(gate_bias))", "return (2 + math.exp(gate_bias))"),
        ("data", "noise / 2", "noise / 3"),
        ("experiments", "epochs=3,", "epochs=4,"),
    ):
        replace_in(source / f"{module}.py", before, after)
        assert all_fingerprints() == old, (module, after)


def test_a_kind_that_is_another_class_now_is_other_code(source):
    old = all_fingerprints()
    replace_in(source / "networks.py", '"highway": HighwayMLP', '"highway": FreeCarryMLP')
    new = all_fingerprints()
    assert [kind for kind in KINDS if old[kind] != new[kind]] == ["highway"]


def test_a_kind_that_is_no_more_is_other_code(source):
    old = all_fingerprints()
    replace_in(source / "networks.py", '    "fixed": FixedGateMLP,\n', "")
    new = all_fingerprints()
    assert [kind for kind in KINDS if old[kind] != new[kind]] == ["fixed"]


def test_kinds_count_once_and_in_no_order():
    assert fingerprint(["plain", "highway"]) == fingerprint(kind for kind in ("highway", "plain", "highway"))
    assert len({*all_fingerprints().values(), fingerprint([]), fingerprint(["plain", "highway"])}) == len(KINDS) + 2


@pytest.mark.parametrize("changed", ["layers", "training"])
def test_two_definitions_of_one_name_count_both(source, changed):
    for module in ("layers", "training"):
        path = source / f"{module}.py"
        path.write_text(path.read_text(encoding="utf-8") + "\n\ndef _to_device_of(one):\n    return one\n")
    old = all_fingerprints()
    replace_in(source / f"{changed}.py", "def _to_device_of(one):\n    return one", "def _to_device_of(one):\n    pass")
    new = all_fingerprints()
    assert all(old[kind] != new[kind] for kind in KINDS)


def test_prose_and_layout_do_not_make_a_result_stale(source):
    before = all_fingerprints()
    for name in results.CODE:
        path = source / f"{name}.py"
        text = path.read_text(encoding="utf-8")
        path.write_text(
            '"""Another text."""\n# and a remark\n' + text.replace(" = ", "  =  ").replace('"""Return', '"""Give'),
            encoding="utf-8",
            newline="\r\n",
        )
        assert path.read_text(encoding="utf-8") != text
    assert all_fingerprints() == before


@pytest.mark.parametrize(
    ("module", "before", "after"),
    [
        ("layers", "import math\nimport operator\n", "import operator\nimport math\n"),
        ("layers", "init: str) -> None:", "init):"),
        ("layers", "init: str) -> None:", "init: Text) -> int:"),
        ("layers", "def forward(self, x: Tensor) -> Tensor:", "def forward(self, x):"),
        ("data", "10_000, 60_000", "10000, 60000"),
        ("networks", "FixedGateBlock, FreeCarryBlock, HighwayBlock", "HighwayBlock, FreeCarryBlock, FixedGateBlock"),
        ("training", "import pandas as pd\nimport torch\n", "import os\nimport torch\nimport pandas as pd\n"),
    ],
)
def test_annotations_and_the_order_of_imports_do_not_make_a_result_stale(source, module, before, after):
    old = all_fingerprints()
    replace_in(source / f"{module}.py", before, after)
    assert all_fingerprints() == old


def test_no_code_of_a_result_hides_from_the_fingerprint():
    """It follows names: definitions and imports at the top of a module, and no text that is looked up as a name."""
    hidden = {"getattr", "setattr", "globals", "locals", "vars", "eval", "exec", "__import__", "importlib"}
    for module in results.CODE:
        tree = ast.parse((results.PACKAGE / f"{module}.py").read_bytes())
        for statement in tree.body:
            assert isinstance(
                statement, ast.FunctionDef | ast.ClassDef | ast.Assign | ast.AnnAssign | ast.Import | ast.ImportFrom
            ) or results._is_text_alone(statement), f"{module}.py, line {statement.lineno}"
            if isinstance(statement, ast.ImportFrom) and statement.level:
                assert statement.module in results.CODE, f"{module}.py imports from .{statement.module}"
                assert all(alias.asname is None for alias in statement.names), f"{module}.py renames an import"
            if isinstance(statement, ast.ImportFrom):
                assert all(alias.name != "*" for alias in statement.names)
        inner = [node for top in tree.body for node in ast.walk(top) if node is not top]
        for node in inner:
            assert not (isinstance(node, ast.ImportFrom) and node.level), f"{module}.py, line {node.lineno}"
        assert not {node.id for node in inner if isinstance(node, ast.Name)} & hidden, module


def test_no_name_is_defined_twice_with_a_difference():
    """Two definitions of one name count both, but not which of them is used where."""
    defined = {}
    for module in results.CODE:
        for statement in ast.parse((results.PACKAGE / f"{module}.py").read_bytes()).body:
            for name, definition in results._bound(statement):
                defined.setdefault(name, set()).add(results._canonical(definition))
    assert [name for name, found in defined.items() if len(found) > 1] == []


def test_how_a_network_is_built_from_its_description_counts(source):
    old = all_fingerprints()
    replace_in(source / "experiments.py", "torch.manual_seed(seed)\n        options", "options")
    new = all_fingerprints()
    assert all(old[kind] != new[kind] for kind in KINDS)


def test_two_kinds_that_change_places_are_other_code(source):
    old = fingerprint(["highway", "plain"])
    replace_in(source / "networks.py", '"highway": HighwayMLP', '"highway": PlainMLP')
    replace_in(source / "networks.py", '"plain": PlainMLP', '"plain": HighwayMLP')
    assert fingerprint(["highway", "plain"]) != old


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('(row["accuracy"], -row["loss"])', '(row["accuracy"], row["loss"])'),
        ('indexing="ij"', 'indexing="xy"'),
        ('history["epoch"] < history', 'history["epoch"] <= history'),
    ],
)
def test_what_is_made_of_the_training_runs_counts(source, before, after):
    old = all_fingerprints()
    replace_in(source / "experiments.py", before, after)
    new = all_fingerprints()
    assert all(old[kind] != new[kind] for kind in KINDS)


def test_the_fingerprint_does_not_hang_on_the_version_of_python():
    """The rule of our own, spelt out for code whose `ast.dump` differs between 3.11, 3.12 and 3.13."""
    tree = ast.parse('def f(x, *, y=u"a"):\n    """Text."""\n    return f"{x!r:>{y}}" + None\n')
    assert results._canonical(tree) == (
        "Module(body=[FunctionDef(name='f', args=arguments(args=[arg(arg='x')], kwonlyargs=[arg(arg='y')], "
        "kw_defaults=['a']), body=[Return(value=BinOp(left=JoinedStr(values=[FormattedValue(value=Name(id='x', "
        "ctx=Load()), conversion=114, format_spec=JoinedStr(values=['>', FormattedValue(value=Name(id='y', "
        "ctx=Load()), conversion=-1)]))]), op=Add(), right=None))])])"
    )


# Saving


def test_everything_is_on_the_disk_before_it_is_renamed(folder, monkeypatch):
    events = []
    for name, real in (("fsync", os.fsync), ("rename", os.rename)):
        monkeypatch.setattr(os, name, lambda *paths, name=name, real=real: (events.append(name), real(*paths)))
    store(folder, loss=0.5)
    start = events.index("rename")
    assert events[start:] == ["rename", "rename", "fsync"]  # the folder of both names last
    assert events[:start].count("fsync") == 2 + 4 + 1  # state and training run, four files, their folder


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_history_that_is_not_finite_is_not_stored(folder, bad):
    with pytest.raises(ResultError, match=r"its loss is not finite in 2 row\(s\).*earlier result is as it was"):
        store(folder, loss=bad)
    assert first_loss() == 0.1


def test_a_history_without_a_column_is_not_stored(folder):
    with (
        pytest.raises(ResultError, match="lacks the column rate, seed"),
        Workspace("tiny", CONFIGURATION) as workspace,
    ):
        workspace.save(make_history().drop(columns=["rate", "seed"]))
    assert first_loss() == 0.1


@pytest.mark.parametrize("key", ["", "../x", "a/b", ".hidden", "a b"])
def test_a_key_that_is_no_file_name_is_refused(folder, key):
    with Workspace("tiny", CONFIGURATION) as workspace:
        with pytest.raises(ValueError, match="cannot be a file's name"):
            workspace.checkpoint(key, dict)
        with pytest.raises(ValueError, match="cannot be a file's name"):
            workspace.save(make_history(), tables={key: make_history()})
    assert first_loss() == 0.1


HOLD = """
import sys
from highway.results import Workspace
with Workspace("tiny", {configuration!r}, {folder!r}):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_two_writers_at_once(folder):
    code = HOLD.format(configuration=CONFIGURATION, folder=str(folder))
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", code], **pipes) as first:
        assert first.stdout.readline() == "held\n"
        with pytest.raises(ResultError, match=r"tiny is being written by another `highway run tiny`; wait until"):
            store(folder, loss=0.5)
        assert first_loss() == 0.1
        first.communicate()
    store(folder, loss=0.5)
    assert first_loss() == 0.5


# Full and read-only disks

REFUSALS = [errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EIO]


@pytest.mark.parametrize("code", REFUSALS)
@pytest.mark.parametrize("nth", range(6))  # state.json, the training run, three files, the record
def test_a_disk_that_refuses_a_write(folder, monkeypatch, code, nth):
    writes = []
    write = results._write

    def refuse(path, content):
        writes.append(path)
        if len(writes) > nth:
            with contextlib.suppress(OSError):
                path.write_bytes(content[: len(content) // 2])
            raise OSError(code, os.strerror(code))
        write(path, content)

    with monkeypatch.context() as patch:
        patch.setattr(results, "_write", refuse)
        with pytest.raises(ResultError) as caught:
            store(folder, loss=0.5)
    assert os.strerror(code) in str(caught.value)
    assert "make room or give the right to write there, and run `highway run tiny` again" in str(caught.value)
    assert len(writes) == nth + 1
    assert first_loss() == 0.1
    assert not (folder / ".tiny.new").exists()
    assert list(folder.rglob("*.tmp")) == []
    store(folder, loss=0.5)
    assert first_loss() == 0.5


@pytest.mark.parametrize("nth", [0, 1])
def test_a_disk_that_refuses_a_rename(folder, monkeypatch, nth):
    rename, calls = os.rename, []

    def refuse(*paths):
        calls.append(paths)
        if len(calls) == nth + 1:
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(paths[0]))
        rename(*paths)

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", refuse)
        with pytest.raises(ResultError, match="cannot be written"):
            store(folder, loss=0.5)
    assert first_loss() == 0.1
    assert (folder / "tiny").is_dir()


def test_a_folder_that_cannot_be(folder, tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ResultError, match=r"file/results cannot be written \(Not a directory\)"):
        store(tmp_path / "file" / "results")


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 256 kB of its own, and a function that makes it read-only."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(disk)]
    if not shutil.which("mount") or subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("a file system can be mounted by root on Linux only")
    yield disk, lambda: subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    subprocess.run(["umount", str(disk)], check=True)


def test_a_disk_that_is_really_full(small_disk):
    disk, _ = small_disk
    store(disk)
    with Workspace("tiny", CONFIGURATION, disk) as workspace:
        with pytest.raises(ResultError, match=r"No space left on device.*make room"):
            workspace.checkpoint("big", lambda: {"noise": np.zeros(100_000)})
        with pytest.raises(ResultError, match=r"No space left on device.*earlier result is as it was"):
            workspace.save(make_history(0.5), arrays={"big": {"noise": np.zeros(100_000)}})
    assert first_loss(disk) == 0.1
    store(disk, loss=0.5)
    assert first_loss(disk) == 0.5


def test_a_disk_that_is_really_read_only(small_disk):
    disk, protect = small_disk
    store(disk)
    protect()
    with pytest.raises(ResultError, match=r"Read-only file system.*earlier result is as it was"):
        store(disk, loss=0.5)
    assert first_loss(disk) == 0.1


# A run that is killed

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
TOUCHES = {"open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "shutil.rmtree"}


def dies(action, before_touch: int, folder) -> bool:
    """Do `action` in a process that kills itself before its nth touch of `folder`; whether it got that far."""
    process = os.fork()
    if process == 0:
        touches = 0

        def count(event, arguments):
            nonlocal touches
            if event in TOUCHES and str(folder) in str(arguments[0]):
                touches += 1
                if touches > before_touch:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(count)
        try:
            action()
            os._exit(0)
        finally:
            os._exit(1)
    _, status = os.waitpid(process, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
    return os.WIFSIGNALED(status)


@needs_fork
def test_a_run_killed_at_any_point_leaves_the_old_result_or_the_new_one(folder):
    found, point = [], 0
    while dies(lambda: store(folder, loss=0.5), point, folder):
        found.append((first_loss(), (folder / "tiny").exists()))
        with Workspace("tiny", CONFIGURATION):
            pass  # the next run clears up
        assert (first_loss(), (folder / "tiny").exists()) == (found[-1][0], True)
        store(folder, loss=0.1)
        assert first_loss() == 0.1
        assert [path.name for path in folder.iterdir() if not path.name.endswith(".lock")] == ["tiny"]
        point += 1
    assert point > 15
    assert (0.1, False) in found, "no kill fell between the two renames"
    assert found[0] == (0.1, True)
    assert found[-1] == (0.5, True)
    assert {loss for loss, _ in found} == {0.1, 0.5}


@needs_fork
@pytest.mark.parametrize("nth", range(6))
def test_a_run_killed_in_the_middle_of_a_write(folder, monkeypatch, nth):
    write, writes = results._write, []

    def die(path, content):
        writes.append(path)
        if len(writes) > nth:
            write(path, content[: len(content) // 2])
            os.kill(os.getpid(), signal.SIGKILL)
        write(path, content)

    monkeypatch.setattr(results, "_write", die)
    assert dies(lambda: store(folder, loss=0.5), sys.maxsize, folder)
    assert first_loss() == 0.1
    monkeypatch.setattr(results, "_write", write)
    store(folder, loss=0.5)
    assert first_loss() == 0.5


@needs_fork
def test_a_first_run_killed_at_any_point_leaves_no_half_of_a_result(folder):
    shutil.rmtree(folder)
    point = 0
    while dies(lambda: store(folder, loss=0.5), point, folder):
        if (folder / "tiny").exists():
            assert first_loss() == 0.5
        else:
            with pytest.raises(ResultError, match=rf"record\.json is missing; run `{REMEDY}`"):
                first_loss()
        shutil.rmtree(folder, ignore_errors=True)
        point += 1
    assert point > 10


# Going on


@pytest.fixture
def killed(folder):
    """A folder with an unfinished run in which `a` and `b` are finished."""
    with Workspace("tiny", CONFIGURATION) as workspace:
        for key in "ab":
            workspace.checkpoint(key, lambda key=key: {"text": np.array([key]), "numbers": np.array(math.pi)})
    return folder


def not_again():
    raise AssertionError("a finished training run was done again")


def test_a_finished_training_run_is_remembered(killed):
    notes = []
    with Workspace("tiny", CONFIGURATION, note=notes.append) as workspace:
        assert workspace.remembered() == 2
        found = workspace.checkpoint("a", not_again)
        assert found.keys() == {"text", "numbers"}
        assert found["text"].tolist() == ["a"]
        assert found["numbers"].shape == ()
        assert found["numbers"] == math.pi
        workspace.checkpoint("b", not_again)
        workspace.save(make_history(0.5))
    assert first_loss() == 0.5
    assert notes == []
    with Workspace("tiny", CONFIGURATION) as workspace:
        assert workspace.remembered() == 0


def test_the_time_of_all_sessions_is_counted(folder, monkeypatch):
    clock = iter(range(0, 1000, 100))
    monkeypatch.setattr(results.time, "perf_counter", lambda: next(clock))
    with Workspace("tiny", CONFIGURATION) as workspace:
        workspace.checkpoint("a", dict)
    with Workspace("tiny", CONFIGURATION) as workspace:
        workspace.checkpoint("a", not_again)
        workspace.checkpoint("b", dict)
        assert workspace.save(make_history()).record["wall_seconds"] == 200


@pytest.mark.parametrize("keep", [0, 30, 200, -5])
def test_a_damaged_training_run_is_done_again(killed, keep):
    path = killed / ".tiny.partial" / "a.run"
    path.write_bytes(path.read_bytes()[:keep])
    notes = []
    with Workspace("tiny", CONFIGURATION, note=notes.append) as workspace:
        assert workspace.checkpoint("a", lambda: {"numbers": np.array(2.0)})["numbers"] == 2
        assert workspace.checkpoint("b", not_again)["text"].tolist() == ["b"]
    assert notes == [f"{path} is damaged: computing it again"]
    with Workspace("tiny", CONFIGURATION) as workspace:
        assert workspace.checkpoint("a", not_again)["numbers"] == 2


def test_a_training_run_may_keep_seconds_of_its_own(folder):
    with Workspace("tiny", CONFIGURATION) as workspace:
        workspace.checkpoint("cost", lambda: {"seconds": np.array([1.5, 2.5])})
    with Workspace("tiny", CONFIGURATION) as workspace:
        assert workspace.checkpoint("cost", not_again)["seconds"].tolist() == [1.5, 2.5]


def test_every_flipped_bit_of_a_training_run_is_seen(killed):
    path = killed / ".tiny.partial" / "a.run"
    content = path.read_bytes()
    for position in np.random.default_rng(0).integers(0, len(content), 40):
        path.write_bytes(content[:position] + bytes([content[position] ^ 1]) + content[position + 1 :])
        with Workspace("tiny", CONFIGURATION) as workspace:
            found = workspace.checkpoint("a", lambda: {"numbers": np.array(2.0)})
        assert found.keys() == {"numbers"}


def test_pickled_objects_are_neither_read_nor_written(folder):
    thing = np.array([{"any": "object"}])
    with pytest.raises(ValueError, match="allow_pickle"), Workspace("tiny", CONFIGURATION) as workspace:
        workspace.checkpoint("a", lambda: {"thing": thing})
    np.savez(folder / "tiny" / "gates.npz", thing=thing)
    rewrite_record(folder)
    with pytest.raises(ValueError, match="allow_pickle"):
        load("tiny").arrays("gates")


def other_code(monkeypatch):
    monkeypatch.setattr(results, "fingerprint", lambda kinds, also: "f" * 64)


def other_numpy(monkeypatch):
    monkeypatch.setattr(results, "version", lambda package: "0.1")


def other_processor(monkeypatch):
    monkeypatch.setattr(results, "processor", lambda: "an abacus")


@pytest.mark.parametrize("change", [other_code, other_numpy, other_processor])
def test_a_training_run_of_another_state_of_things_is_not_used(killed, monkeypatch, change):
    change(monkeypatch)
    notes = []
    with Workspace("tiny", CONFIGURATION, note=notes.append) as workspace:
        assert workspace.remembered() == 0
    assert len(notes) == 1
    assert "starting anew" in notes[0]


def test_a_training_run_of_another_configuration_is_not_used(killed):
    notes = []
    with Workspace("tiny", CONFIGURATION | {"rates": [0.2]}, note=notes.append) as workspace:
        assert workspace.remembered() == 0
    assert len(notes) == 1
    assert "starting anew" in notes[0]


def test_a_damaged_state_is_not_used(killed):
    (killed / ".tiny.partial" / "state.json").write_text("{")
    with Workspace("tiny", CONFIGURATION) as workspace:
        assert workspace.remembered() == 0


def test_the_processor_is_named():
    assert results.processor().strip()
