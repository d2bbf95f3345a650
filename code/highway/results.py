"""The store of results: save, load, check, fingerprint.

A result is a folder: `record.json` says how it came about and holds the SHA-256 of every file beside it,
`history.csv` is the tidy history, and there may be more tables (CSV), arrays (npz) and weights (safetensors).

A result appears at once or not at all. It is written into a hidden folder beside its place and renamed when whole,
so that a run killed at any moment leaves the old result or the new one. For an experiment called NAME, a folder of
results may hold, while a run is at work or after one was killed,

===================  =========================================================================================
`.NAME.partial/`     the finished training runs of an unfinished experiment (`*.run`: the SHA-256 of an npz, then
                     the npz), and `state.json`, what they belong to
`.NAME.new/`         a result that is being written
`.NAME.old/`         the result that is being replaced; it is read where `NAME/` is missing
`.NAME.lock`         held by the one run that may write
===================  =========================================================================================
"""

import ast
import hashlib
import io
import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from filelock import FileLock, Timeout
from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match

if TYPE_CHECKING:
    from torch import Tensor

FOLDER_VARIABLE = "HIGHWAY_RESULTS"
PACKAGE = Path(__file__).resolve().parent
CODE = ("data", "layers", "networks", "training", "probes", "experiments")
"""The modules whose code decides the numbers of a result."""

ROOTS = ("NetworkSpec", "load_data", "train_once", "choose", "repeatable", "_last", "_norms", "_before_divergence")
"""What every experiment calls; the network of each kind comes on top. What these use is the code of a result."""

PACKAGES = ("torch", "torchvision", "numpy", "pandas", "mlxtend")
"""The packages whose versions a record names."""

SCHEMA = 1
COLUMNS = [
    "network", "init", "depth", "width", "gate_bias", "rate", "seed", "epoch", "split", "loss", "accuracy",
]  # fmt: skip

_FILE = r"[A-Za-z0-9_][A-Za-z0-9_.+-]*"
_TEXT, _SHA256 = {"type": "string", "minLength": 1}, {"type": "string", "pattern": "^[0-9a-f]{64}$"}
_FIELDS = {
    "schema": {"const": SCHEMA},
    "name": _TEXT,
    "title": _TEXT,
    "configuration": {
        "type": "object",
        "required": ["networks"],
        "properties": {
            "networks": {
                "type": "array",
                "items": {"type": "object", "required": ["kind"], "properties": {"kind": _TEXT}},
            }
        },
    },
    "configuration_sha256": _SHA256,
    "fingerprint": _SHA256,
    "versions": {"type": "object", "required": ["python", *PACKAGES], "additionalProperties": _TEXT},
    "processor": _TEXT,
    "threads": {"type": "integer", "minimum": 1},
    "seeds": {"type": "array", "items": {"type": "integer"}},
    "wall_seconds": {"type": "number", "minimum": 0},
    "date": {"type": "string", "pattern": r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00$"},
    "files": {"type": "object", "required": ["history.csv"], "additionalProperties": _SHA256},
    "networks": {
        "type": "array",
        "items": {
            "type": "object",
            "required": ["weights", "seed", "spec", "accuracy"],
            "properties": {
                "weights": _TEXT,
                "seed": {"type": "integer"},
                "spec": {"type": "object"},
                "accuracy": {"type": "object", "additionalProperties": {"type": "number"}},
            },
        },
    },
}
_RECORD = {"type": "object", "required": list(_FIELDS), "properties": _FIELDS, "additionalProperties": False}

Arrays = dict[str, np.ndarray]


class ResultError(RuntimeError):
    """A result cannot be used or written; the message names the file, what is wrong, and the remedy.

    `state` is one of `missing`, `stale`, `damaged` where a stored result is at fault, else empty.
    """

    def __init__(self, message: str, state: str = ""):
        super().__init__(message)
        self.state = state


def results_folder() -> Path:
    """Return the folder of all results: `HIGHWAY_RESULTS`, else `book/results` of the checkout.

    Raises ResultError where the package was installed without the book and the variable is not set.
    """
    named = os.environ.get(FOLDER_VARIABLE)
    if named:
        return Path(os.path.expanduser(named))
    book = PACKAGE.parents[1] / "book"
    if not book.is_dir():
        raise ResultError(
            f"the book's results are not here: clone the book and install the package from the clone, "
            f"or set {FOLDER_VARIABLE} to the folder that holds them"
        )
    return book / "results"


def fingerprint(kinds: Iterable[str], also: Iterable[str] = ()) -> str:
    """Return the SHA-256 of the code that decides a result with networks of these kinds (see `NETWORKS`).

    That code is every definition of the modules `CODE` that `ROOTS`, the names in `also` and those networks use,
    directly or not: what they do not use, such as a new kind of block, may change without making the result stale. A
    name counts as used where it is written; two definitions of one name count both.
    Comments, docstrings, annotations and layout do not count. Neither does the Python that computes it: the syntax tree
    is written out by a rule of our own (the name of each node and its fields that are not empty), since `ast.dump` and
    `ast.unparse` change between versions, and fields that a later version adds are empty in code that runs on all.
    """
    definitions: dict[str, list[ast.AST]] = {}
    for module in CODE:
        for statement in ast.parse((PACKAGE / f"{module}.py").read_bytes()).body:
            for name, definition in _bound(statement):
                definitions.setdefault(name, []).append(definition)
    (networks,) = definitions.pop("NETWORKS")
    kinds_and_names = zip(networks.value.keys, networks.value.values, strict=True)
    classes = {ast.literal_eval(kind): name.id for kind, name in kinds_and_names}
    used = {kind: classes.get(kind, "") for kind in kinds}
    wanted, code = [*ROOTS, *also, *used.values()], {"": used}
    while wanted:
        name = wanted.pop()
        if name in definitions and name not in code:
            code[name] = sorted({_canonical(definition) for definition in definitions[name]})
            wanted += re.findall(r"Name\(id='(\w+)'", "".join(code[name]))
    return hashlib.sha256(json.dumps(code, sort_keys=True).encode()).hexdigest()


def _bound(statement: ast.stmt) -> Iterator[tuple[str, ast.AST]]:
    """Yield the names that a statement of a module binds, each with what it is bound to."""
    match statement:
        case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
            yield name, statement
        case ast.Assign(targets=targets):
            for node in (node for target in targets for node in ast.walk(target) if isinstance(node, ast.Name)):
                yield node.id, statement
        case ast.AnnAssign(target=ast.Name(id=name)):
            yield name, statement
        case ast.Import(names=aliases):
            for alias in aliases:
                yield (alias.asname or alias.name).partition(".")[0], alias
        case ast.ImportFrom(names=aliases, level=0):
            for alias in aliases:
                yield alias.asname or alias.name, ast.ImportFrom(statement.module, [alias], 0)


def _canonical(node: Any) -> str:
    if isinstance(node, ast.Constant):
        return repr(node.value)
    if isinstance(node, ast.AST):
        fields = (
            (name, value) for name, value in ast.iter_fields(node)
            if value not in (None, []) and name not in ("annotation", "returns")
        )  # fmt: skip
        return f"{type(node).__name__}({', '.join(f'{name}={_canonical(value)}' for name, value in fields)})"
    if isinstance(node, list):
        return f"[{', '.join(_canonical(item) for item in node if not _is_text_alone(item))}]"
    return repr(node)


def _is_text_alone(node: Any) -> bool:
    """Whether a statement is a string and nothing else: a docstring, of whatever it stands under."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def configuration_sha256(configuration: dict) -> str:
    """Return the SHA-256 of a configuration (numbers, strings, None, lists and dictionaries), in any order of keys."""
    return _sha256(json.dumps(configuration, sort_keys=True, separators=(",", ":"), allow_nan=False).encode())


@dataclass(frozen=True)
class Result:
    """A stored result, as `load` found it whole."""

    path: Path
    record: dict
    history: pd.DataFrame
    files: dict[str, bytes] = field(repr=False)

    def table(self, key: str) -> pd.DataFrame:
        """Return `<key>.csv`. ResultError names the files that there are."""
        return _read_csv(self._content(f"{key}.csv"))

    def arrays(self, key: str) -> Arrays:
        """Return the arrays of `<key>.npz` by name. ResultError names the files that there are."""
        return _read_npz(self._content(f"{key}.npz"))

    def weights(self, key: str) -> "dict[str, Tensor]":
        """Return the tensors of `<key>.safetensors` by name. ResultError names the files that there are."""
        from safetensors.torch import load

        return load(self._content(f"{key}.safetensors"))

    def _content(self, file: str) -> bytes:
        if file not in self.files:
            raise ResultError(f"{self.path} has no {file}: choose one of {', '.join(sorted(self.files))}")
        return self.files[file]


def load(name: str, folder: Path | None = None) -> Result:
    """Return the result of experiment `name` from `folder` (the book's results by default).

    Raises ResultError, with the command that mends it, where a file is missing or is not the one that was stored, where
    the record is damaged, of an unknown schema or contradicts itself, where the code has changed since (see
    `fingerprint`), or where the history lacks a column or holds a loss or accuracy that is not finite.
    """
    folder = results_folder() if folder is None else Path(folder)
    path, old = folder / name, folder / f".{name}.old"
    if not path.exists() and old.exists():  # a run was killed while it put a new result in the old one's place
        path = old
    return _read(path, name, f"run `{run_command(name, folder)}`")


def check(name: str, configurations: list[dict], folder: Path | None = None) -> Result:
    """Return what `load` does, if it also is the result of one of these configurations; ResultError otherwise."""
    result = load(name, folder)
    if result.record["configuration_sha256"] not in map(configuration_sha256, configurations):
        raise ResultError(
            f"{result.path / 'record.json'} is stale: its configuration is not that of the catalogue; "
            f"run `{run_command(name, result.path.parent)}`",
            "stale",
        )
    return result


def run_command(name: str, folder: Path, quick: bool = False) -> str:
    """Return the command that writes a result anew."""
    try:
        elsewhere = os.path.realpath(folder) != os.path.realpath(results_folder())
    except ResultError:
        elsewhere = True
    return f"highway run {name}{' --quick' * quick}{f' --out {shlex.quote(str(folder))}' * elsewhere}"


def _read(path: Path, name: str, remedy: str) -> Result:
    """Return the result in the folder `path`, checked from end to end."""

    def content(file: str) -> bytes:
        try:
            return (path / file).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            raise ResultError(f"{path / file} is missing; {remedy}", "missing") from None
        except OSError as error:
            raise ResultError(f"{path / file} cannot be read ({error.strerror}); {remedy}", "damaged") from error

    def damaged(file: str, what: str) -> ResultError:
        return ResultError(f"{path / file} is damaged: {' '.join(what.split())}; {remedy}", "damaged")

    try:
        record = json.loads(content("record.json"), parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise damaged("record.json", f"it is no valid JSON ({error})") from error
    found = record.get("schema") if isinstance(record, dict) else None
    if found != SCHEMA:
        raise damaged("record.json", f"its schema is {found!r}, and this code knows {SCHEMA}")
    error = best_match(Draft202012Validator(_RECORD).iter_errors(record))
    if error:
        raise damaged("record.json", f"{error.json_path[2:] or 'it'}: {error.message}")
    if record["name"] != name:
        raise damaged("record.json", f"it belongs to experiment {record['name']!r}")
    if record["configuration_sha256"] != configuration_sha256(record["configuration"]):
        raise damaged("record.json", "its configuration does not have the hash that it gives")
    files = {}
    for file, expected in sorted(record["files"].items()):
        if not re.fullmatch(_FILE, file):
            raise damaged("record.json", f"it lists {file!r}, which is no file beside it")
        files[file] = content(file)
        if _sha256(files[file]) != expected:
            raise damaged(file, f"its SHA-256 is {_sha256(files[file])[:12]}..., and not {expected[:12]}...")
    if record["fingerprint"] != _fingerprint_for(record["configuration"]):
        raise ResultError(
            f"{path / 'record.json'} is stale: the code that trains and measures its networks has changed since; "
            f"{remedy}",
            "stale",
        )
    try:
        history = _read_csv(files["history.csv"])
    except ValueError as error:
        raise damaged("history.csv", f"it is no table ({error})") from error
    problem = _problem_of(history)
    if problem:
        raise damaged("history.csv", problem)
    return Result(path, record, history, files)


def _fingerprint_for(configuration: dict) -> str:
    kinds = [network["kind"] for network in configuration["networks"]]
    return fingerprint(kinds, ["measure_cost"] if configuration.get("cost") else [])


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no number of JSON")


def _problem_of(history: pd.DataFrame) -> str:
    """Say what is wrong with a history, or nothing."""
    missing = [column for column in COLUMNS if column not in history.columns]
    if missing:
        return f"it lacks the column {', '.join(missing)}"
    if history.empty:
        return "it has no row"
    for column in ("loss", "accuracy"):
        numbers = pd.to_numeric(history[column], errors="coerce")
        bad = history[~np.isfinite(numbers)]
        if len(bad):
            where = ", ".join(f"{key} {bad.iloc[0][key]}" for key in ("network", "init", "seed", "epoch", "split"))
            return f"its {column} is not finite in {len(bad)} row(s), first at {where}"
    for column in COLUMNS:
        if column not in ("network", "init", "split") and not pd.api.types.is_numeric_dtype(history[column]):
            return f"its column {column} does not hold numbers alone"
    return ""


def _read_csv(content: bytes) -> pd.DataFrame:
    """Read a table, every float as it was written (pandas 3.1 does so); only an empty field is a missing value."""
    return pd.read_csv(io.BytesIO(content), keep_default_na=False, na_values=[""])


def _read_npz(content: bytes) -> Arrays:
    with np.load(io.BytesIO(content), allow_pickle=False) as stored:
        return {name: stored[name] for name in stored.files}


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


class Workspace:
    """The right to write one result, as a context manager; see the module's text for the files.

    Within it, `checkpoint` remembers finished training runs for a run that was killed, and `save` puts the result in
    place. What is remembered belongs to one state of things: the configuration, the fingerprint, the versions of
    torch and numpy, and the processor; in any other state the run starts anew. `note` is told in a sentence when that
    happens, and when a remembered file is damaged.

    Raises ResultError where another run is writing this result, or where the folder cannot be written.
    """

    def __init__(
        self,
        name: str,
        configuration: dict,
        folder: Path | None = None,
        note: Callable[[str], None] = lambda text: None,
    ):
        self.name = name
        self.configuration = json.loads(json.dumps(configuration, allow_nan=False))
        self.folder = results_folder() if folder is None else Path(folder)
        self.path = self.folder / name
        self.note = note
        self.seconds = 0.0
        self.partial, self.new, self.old, self.lock = (
            self.folder / f".{name}.{kind}" for kind in ("partial", "new", "old", "lock")
        )
        self._command = run_command(name, self.folder, configuration.get("source") == "sample")
        self._state = {
            "configuration_sha256": configuration_sha256(self.configuration),
            "fingerprint": _fingerprint_for(self.configuration),
            "versions": {package: version(package) for package in ("torch", "numpy")},
            "processor": processor(),
        }

    def __enter__(self) -> "Workspace":
        with ExitStack() as undo:
            with self._writing():
                self.folder.mkdir(parents=True, exist_ok=True)
                try:
                    undo.enter_context(FileLock(self.lock, timeout=0))
                except Timeout:
                    raise ResultError(
                        f"{self.path} is being written by another `highway run {self.name}`; wait until it has ended"
                    ) from None
                self._tidy()
                self._open_partial()
            self._undo = undo.pop_all()
        return self

    def __exit__(self, *exception: object) -> None:
        self._undo.close()

    def _tidy(self) -> None:
        """Clear up after a run that was killed while it saved."""
        if self.old.exists() and not self.path.exists():
            os.rename(self.old, self.path)
        for leftover in (self.old, self.new):
            _remove(leftover)

    def _open_partial(self) -> None:
        """Keep the remembered training runs if they belong to the present state of things, else start anew."""
        state = self.partial / "state.json"
        try:
            found = json.loads(state.read_bytes())
        except (OSError, ValueError):
            found = None
        if found == self._state:
            return
        if self.partial.exists():
            if any(self.partial.glob("*.run")):
                self.note(
                    f"the finished training runs of {self.name} belong to another configuration, code, version or "
                    f"processor: starting anew"
                )
            _remove(self.partial)
        self.partial.mkdir()
        _write_whole(state, _json(self._state))

    def remembered(self) -> int:
        """Return how many training runs are remembered."""
        return len(list(self.partial.glob("*.run")))

    def checkpoint(self, key: str, compute: Callable[[], Arrays]) -> Arrays:
        """Return the remembered arrays of `key` (a file name), or those of `compute()`, which then are remembered.

        A damaged file is computed again.
        """
        _check_key(key)
        path = self.partial / f"{key}.run"
        if path.exists():
            try:
                content = path.read_bytes()
            except OSError:
                content = b""
            if content[:32] == hashlib.sha256(content[32:]).digest():
                found = _read_npz(content[32:])
                self.seconds += float(found.pop("_wall_seconds"))
                return found
            self.note(f"{path} is damaged: computing it again")
        start = time.perf_counter()
        found = compute()
        seconds = time.perf_counter() - start
        content = _npz(found | {"_wall_seconds": np.array(seconds)})
        with self._writing():
            _write_whole(path, hashlib.sha256(content).digest() + content)
        self.seconds += seconds
        return found

    def save(
        self,
        history: pd.DataFrame,
        tables: dict[str, pd.DataFrame] | None = None,
        arrays: dict[str, Arrays] | None = None,
        weights: "dict[str, dict[str, Tensor]] | None" = None,
        networks: list[dict] | None = None,
    ) -> Result:
        """Store the result in place of an earlier one, forget the training runs, and return what `load` does.

        `wall_seconds` in the record is the time of the training runs, in whichever session they ran.
        Raises ResultError, and leaves the earlier result as it was, where the history lacks a column or holds a number
        that is not finite, or where the folder cannot be written.
        """
        problem = _problem_of(history)
        if problem:
            raise ResultError(
                f"the history of {self.name} cannot be stored: {problem}; the earlier result is as it was; change the "
                f"configuration or the code, and run `{self._command}` again"
            )
        files = {"history.csv": _csv(history[COLUMNS])}
        files |= {f"{key}.csv": _csv(table) for key, table in (tables or {}).items()}
        files |= {f"{key}.npz": _npz(stored) for key, stored in (arrays or {}).items()}
        files |= {f"{key}.safetensors": _safetensors(tensors) for key, tensors in (weights or {}).items()}
        for file in files:
            _check_key(file)
        record = {
            "schema": SCHEMA,
            "name": self.name,
            "title": self.configuration["title"],
            "configuration": self.configuration,
            "configuration_sha256": self._state["configuration_sha256"],
            "fingerprint": self._state["fingerprint"],
            "versions": {"python": platform.python_version()} | {package: version(package) for package in PACKAGES},
            "processor": self._state["processor"],
            "threads": self.configuration["threads"],
            "seeds": self.configuration["seeds"],
            "wall_seconds": round(self.seconds, 1),
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "files": {file: _sha256(content) for file, content in files.items()},
            "networks": networks or [],
        }
        with self._writing():
            try:
                self.new.mkdir()
                for file, content in files.items():
                    _write(self.new / file, content)
                _write(self.new / "record.json", _json(record))
                _sync(self.new)
                _read(self.new, self.name, f"run `{self._command}` again")
                if os.path.lexists(self.path):
                    os.rename(self.path, self.old)
                os.rename(self.new, self.path)
                _sync(self.folder)
            except BaseException:
                shutil.rmtree(self.new, ignore_errors=True)
                if self.old.exists() and not self.path.exists():
                    os.rename(self.old, self.path)
                raise
        for leftover in (self.old, self.partial):
            with suppress(OSError):
                _remove(leftover)
        return load(self.name, self.folder)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise ResultError(
                f"{error.filename or self.folder} cannot be written ({error.strerror or error}); make room or give the "
                f"right to write there, and run `{self._command}` again, which goes on from the finished training "
                f"runs; the earlier result is as it was"
            ) from error


def processor() -> str:
    """Return the name of the processor model, as far as the system tells it."""
    if platform.system() == "Linux":
        names = re.findall(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
        if names:
            return names[0]
    elif platform.system() == "Darwin":
        return subprocess.check_output(["sysctl", "-n", "machdep.cpu.brand_string"], text=True).strip()
    return platform.processor() or platform.machine() or "unknown"


def _check_key(key: str) -> None:
    if not re.fullmatch(_FILE, key):
        raise ValueError(f"{key!r} cannot be a file's name: use letters, digits and _ . + - only")


def _csv(table: pd.DataFrame) -> bytes:
    return table.to_csv(index=False, lineterminator="\n").encode()


def _npz(arrays: Arrays) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **arrays)
    return buffer.getvalue()


def _safetensors(tensors: "dict[str, Tensor]") -> bytes:
    from safetensors.torch import save

    return save(tensors)


def _json(content: dict) -> bytes:
    return (json.dumps(content, indent=1, sort_keys=True, allow_nan=False) + "\n").encode()


def _remove(path: Path) -> None:
    """Delete a folder with all that it holds, or a file or link that stands in its place."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _write_whole(path: Path, content: bytes) -> None:
    """Write a file that appears at once or not at all."""
    beside = path.with_name(f"{path.name}.tmp")
    try:
        _write(beside, content)
        os.replace(beside, path)
    except OSError:
        beside.unlink(missing_ok=True)
        raise


def _write(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _sync(folder: Path) -> None:
    """Have the names in a folder written to the disk, where the system can."""
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
