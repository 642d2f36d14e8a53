"""PyTorch's file format for tensors, read and written without PyTorch and without running what a file says.

A `.bin` or `.pt` file is a zip archive: `data.pkl` names the tensors, `data/N` holds the bytes of each storage. The
pickle is read twice: its instructions are first compared with the few that a dictionary of tensors needs, and only then
followed, with two harmless names to call. This file knows tensors as bytes; what they are for is not its business.
"""

import io
import pickle
import pickletools
import struct
import zipfile
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from diversed_mlx.convert.output import writing
from diversed_mlx.errors import DiversedError

# Storage class of torch -> the name of its type, and numpy's type of the same width that carries the bits.
STORAGES = {
    "DoubleStorage": ("float64", np.dtype("<f8")),
    "FloatStorage": ("float32", np.dtype("<f4")),
    "HalfStorage": ("float16", np.dtype("<f2")),
    "BFloat16Storage": ("bfloat16", np.dtype("<u2")),
    "LongStorage": ("int64", np.dtype("<i8")),
    "IntStorage": ("int32", np.dtype("<i4")),
    "ShortStorage": ("int16", np.dtype("<i2")),
    "CharStorage": ("int8", np.dtype("i1")),
    "ByteStorage": ("uint8", np.dtype("u1")),
    "BoolStorage": ("bool", np.dtype("?")),
}
STORAGE_OF = {dtype: name for name, (dtype, _) in STORAGES.items()}
CARRIER = dict(STORAGES.values())

# What a dictionary of tensors is pickled with; those that build objects by class, or hash by identity, are not here.
INSTRUCTIONS = frozenset(
    {
        "PROTO", "GLOBAL", "EMPTY_TUPLE", "EMPTY_DICT", "EMPTY_LIST", "REDUCE", "BUILD", "MARK", "TUPLE", "TUPLE1",
        "TUPLE2", "TUPLE3", "BINPERSID", "BINUNICODE", "BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "NONE",
        "NEWTRUE", "NEWFALSE", "BINPUT", "LONG_BINPUT", "BINGET", "LONG_BINGET", "SETITEM", "SETITEMS", "APPEND",
        "APPENDS", "STOP",
    }
)  # fmt: skip
REBUILD, PARAMETER = "torch._utils _rebuild_tensor_v2", "torch._utils _rebuild_parameter"
LARGEST_PICKLE = 2**26  # names and shapes only: a model with a hundred thousand tensors stays far below
ALIGNMENT = 64  # of each storage in the file, as torch has it, so that it can be mapped into memory


@dataclass(frozen=True)
class Tensor:
    """A tensor as its bits.

    Args:
        dtype: torch's name of the type without its prefix, such as "bfloat16".
        values: the elements; for bfloat16, which numpy lacks, the bits as uint16.
    """

    dtype: str
    values: np.ndarray


class _Storage(NamedTuple):
    dtype: str
    values: np.ndarray


class _StorageType(NamedTuple):
    dtype: str


class _Rebuild(NamedTuple):
    """Stands for torch's function of that name; a NamedTuple, so that no BUILD can change what it does."""

    def __call__(self, storage: Any, offset: Any, size: Any, stride: Any, *rest: Any) -> Tensor:
        numbers = (offset, *size, *stride)
        if not isinstance(storage, _Storage) or not all(type(n) is int and 0 <= n < 2**48 for n in numbers):
            raise ValueError("a tensor without a storage, or with a shape that is none")
        last = offset + sum((n - 1) * step for n, step in zip(size, stride, strict=True))
        if prod(size) and last >= storage.values.size:
            raise ValueError(f"a tensor of shape {tuple(size)} reaches beyond its storage")
        if prod(size) > storage.values.size:  # repeats elements: a small file could ask for any amount of memory
            raise ValueError(f"a tensor of shape {tuple(size)} is larger than its storage")
        step = storage.values.itemsize
        start = storage.values[offset:] if prod(size) else storage.values[:0]
        view = np.lib.stride_tricks.as_strided(start, tuple(size), tuple(n * step for n in stride), writeable=False)
        return Tensor(storage.dtype, view)


class _Parameter(NamedTuple):
    def __call__(self, data: Any, *rest: Any) -> Tensor:
        if not isinstance(data, Tensor):
            raise ValueError("a parameter that is no tensor")
        return data


def read_tensors(path: str | Path) -> dict[str, Tensor]:
    """Read the tensors of a file that `torch.save(state_dict)` wrote, wherever they were when it was saved.

    Args:
        path: the file.

    Raises:
        DiversedError: not such a file, a damaged one, or one whose pickle asks for anything but tensors; the message
            names what it asks for, and nothing of it is run.
    """
    path = Path(path)
    try:
        with zipfile.ZipFile(path) as archive:
            return _read(archive)
    except DiversedError as error:
        raise DiversedError(f"{path}: {error}") from error
    except zipfile.BadZipFile as error:
        raise DiversedError(
            f"{path} is cut off, damaged, or not a file of torch 1.6 or newer ({error}); older ones must be saved again"
        ) from error
    except OSError as error:
        raise DiversedError(f"{path} cannot be read: {error.strerror or error}") from error
    # What a pickle that is not a dictionary of tensors can make of the stack, and nothing else.
    except (
        pickle.UnpicklingError, EOFError, ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError,
        NotImplementedError, RuntimeError, struct.error,
    ) as error:  # fmt: skip
        raise DiversedError(f"{path} is not a dictionary of tensors: {' '.join(str(error).split())}") from error


def _read(archive: zipfile.ZipFile) -> dict[str, Tensor]:
    names = archive.namelist()
    pickles = [name for name in names if name.count("/") == 1 and name.endswith("/data.pkl")]
    if len(pickles) != 1 or len(set(names)) != len(names):
        raise DiversedError("not a file of torch.save: it must hold one data.pkl in one folder, and no name twice")
    if any(entry.compress_type != zipfile.ZIP_STORED for entry in archive.infolist()):
        raise DiversedError("torch never compresses its files, and this one is compressed")
    root = pickles[0].removesuffix("data.pkl")
    if f"{root}byteorder" in names and archive.read(f"{root}byteorder") != b"little":
        raise DiversedError("it was written on a big-endian machine")
    if archive.getinfo(pickles[0]).file_size > LARGEST_PICKLE:
        raise DiversedError("its data.pkl is too large to name tensors only")
    code = archive.read(pickles[0])
    _require_tensors_only(code)
    loaded = _Unpickler(code, archive, root).load()
    if not isinstance(loaded, dict) or not all(type(name) is str for name in loaded):
        raise DiversedError(f"it holds a {type(loaded).__name__}, not a dictionary of tensors by name")
    for name, value in loaded.items():
        if not isinstance(value, Tensor):
            raise DiversedError(f"it holds {name!r}, which is a {type(value).__name__} and not a tensor")
    return dict(loaded)


def _require_tensors_only(code: bytes) -> None:
    """Refuse a pickle by what it asks for, before any of it is followed."""
    allowed = {REBUILD, PARAMETER, "collections OrderedDict", *(f"torch {name}" for name in STORAGES)}
    instructions = list(pickletools.genops(code))
    texts: list[str] = []
    for instruction, argument, _ in instructions:
        if instruction.name in ("GLOBAL", "INST"):
            name = str(argument)
        elif instruction.name == "STACK_GLOBAL":  # newer protocols take module and name from the two texts before
            name = " ".join(texts[-2:])
        else:
            if isinstance(argument, str):
                texts.append(argument)
            continue
        if name not in allowed:
            raise DiversedError(
                f"refused: its pickle asks for {name.replace(' ', '.')!r}, which no dictionary of tensors needs"
            )
    for instruction, argument, _ in instructions:
        if instruction.name not in INSTRUCTIONS:
            raise DiversedError(
                f"refused: its pickle has the instruction {instruction.name}, which no dictionary of tensors needs"
            )
        if "PUT" in instruction.name and isinstance(argument, int) and argument > len(code):
            raise DiversedError("refused: its pickle asks for more memory than it can need")  # of the table of memos


class _Unpickler(pickle.Unpickler):
    """Follows the instructions that were found harmless."""

    def __init__(self, code: bytes, archive: zipfile.ZipFile, root: str):
        super().__init__(io.BytesIO(code))
        self._archive, self._root = archive, root
        self._storages: dict[str, _Storage] = {}

    def find_class(self, module: str, name: str, /) -> Any:
        known = {"collections OrderedDict": OrderedDict, REBUILD: _Rebuild(), PARAMETER: _Parameter()}
        if (found := known.get(f"{module} {name}")) is not None:
            return found
        if module == "torch" and name in STORAGES:
            return _StorageType(STORAGES[name][0])
        raise DiversedError(f"refused: its pickle asks for '{module}.{name}'")

    def persistent_load(self, pid: Any, /) -> _Storage:
        tag, kind, key, _, count = pid  # the fourth is where it was: cpu, cuda:0, mps, which is nothing to us
        if tag != "storage" or not isinstance(kind, _StorageType) or type(key) is not str or type(count) is not int:
            raise ValueError("a storage that is none")
        if key not in self._storages:
            data = self._archive.read(f"{self._root}data/{key}")
            values = np.frombuffer(data, CARRIER[kind.dtype]) if len(data) else np.empty(0, CARRIER[kind.dtype])
            self._storages[key] = _Storage(kind.dtype, values)
        storage = self._storages[key]
        if (storage.dtype, storage.values.size) != (kind.dtype, count):
            raise ValueError(f"storage {key} has {storage.values.size} elements and not {count} of {kind.dtype}")
        return storage


def write_tensors(path: str | Path, tensors: Mapping[str, Tensor]) -> None:
    """Write a file that `torch.load(path, weights_only=True)` reads as a dictionary of tensors on the CPU.

    Args:
        path: the file; it appears by rename.
        tensors: by name.

    Raises:
        DiversedError: the file cannot be written.
    """
    path = Path(path)
    with writing(path) as partial, zipfile.ZipFile(partial, "w", zipfile.ZIP_STORED) as archive:
        root = path.stem
        _add(archive, f"{root}/data.pkl", _pickle(tensors))
        _add(archive, f"{root}/.format_version", b"1")
        _add(archive, f"{root}/.storage_alignment", str(ALIGNMENT).encode())
        _add(archive, f"{root}/byteorder", b"little")
        for key, tensor in enumerate(tensors.values()):
            _add(archive, f"{root}/data/{key}", np.ascontiguousarray(tensor.values).tobytes())
        _add(archive, f"{root}/version", b"3\n")


def _add(archive: zipfile.ZipFile, name: str, data: bytes) -> None:
    """Add an entry whose bytes begin at a multiple of ALIGNMENT, padded in the extra field as torch does it."""
    entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))  # the same tensors give the same file
    assert archive.fp is not None
    begins = archive.fp.tell() + 30 + len(name.encode()) + 4  # local header, name, head of the extra field
    padding = -begins % ALIGNMENT
    entry.extra = b"FB" + struct.pack("<H", padding) + b"Z" * padding
    archive.writestr(entry, data)


def _pickle(tensors: Mapping[str, Tensor]) -> bytes:
    """What torch pickles for a dictionary of contiguous tensors, in protocol 2 and without memos."""
    empty = b"ccollections\nOrderedDict\n)R"  # the dictionary itself, and the hooks of each tensor
    out = [b"\x80\x02", empty, b"("]
    for key, (name, tensor) in enumerate(tensors.items()):
        shape = tensor.values.shape
        strides = [prod(shape[axis + 1 :]) for axis in range(len(shape))]
        out += [_text(name), b"ctorch._utils\n_rebuild_tensor_v2\n", b"(("]
        out += [_text("storage"), f"ctorch\n{STORAGE_OF[tensor.dtype]}\n".encode(), _text(str(key)), _text("cpu")]
        out += [_integer(tensor.values.size), b"tQ", _integer(0)]
        out += [b"(", *map(_integer, shape), b"t", b"(", *map(_integer, strides), b"t"]
        out += [b"\x89", empty, b"tR"]  # no gradient is wanted
    return b"".join([*out, b"u."])


def _text(text: str) -> bytes:
    data = text.encode()
    return b"X" + struct.pack("<I", len(data)) + data


def _integer(number: int) -> bytes:
    data = pickle.encode_long(number)
    return b"\x8a" + struct.pack("<B", len(data)) + data
