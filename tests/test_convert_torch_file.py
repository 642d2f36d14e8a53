"""Torch's files without torch: what torch writes is read bit by bit, torch reads what we write, code is refused."""

import os
import pickle
import struct
import zipfile
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest

from diversed_mlx import DiversedError
from diversed_mlx.convert.torch_file import STORAGES, Tensor, read_tensors, write_tensors

RAN = []  # what a hostile pickle would append to


def write_zip(
    path: Path, code: bytes, storages: dict[str, bytes] | None = None, compression=zipfile.ZIP_STORED
) -> Path:
    with zipfile.ZipFile(path, "w", compression) as archive:
        archive.writestr("archive/data.pkl", code)
        archive.writestr("archive/version", "3\n")
        for key, data in (storages or {}).items():
            archive.writestr(f"archive/data/{key}", data)
    return path


def state(**changes: object) -> bytes:
    """Protocol 2 for {"x": a float32 tensor}, with parts exchanged."""
    part = {"numel": 6, "offset": 0, "size": (2, 3), "stride": (3, 1), "type": "FloatStorage", "key": "0"} | changes
    ints = lambda values: b"(" + b"".join(b"J" + struct.pack("<i", v) for v in values) + b"t"  # noqa: E731
    text = lambda t: b"X" + struct.pack("<I", len(t)) + t.encode()  # noqa: E731
    storage = b"(" + text("storage") + f"ctorch\n{part['type']}\n".encode() + text(str(part["key"])) + text("cuda:3")
    storage += b"J" + struct.pack("<i", part["numel"]) + b"tQ"
    tensor = b"ctorch._utils\n_rebuild_tensor_v2\n(" + storage + b"J" + struct.pack("<i", part["offset"])
    tensor += ints(part["size"]) + ints(part["stride"]) + b"\x89ccollections\nOrderedDict\n)RtR"
    return b"\x80\x02}" + text("x") + tensor + b"s."


SIX = np.arange(6, dtype="<f4").tobytes()


def refused(path: Path) -> str:
    with pytest.raises(DiversedError) as error:
        read_tensors(path)
    message = str(error.value)
    assert str(path) in message
    assert "\n" not in message
    assert not RAN
    return message


def test_rows_columns_and_parts_of_a_storage_are_read(tmp_path):
    cases = {
        ((0), (2, 3), (3, 1)): [[0, 1, 2], [3, 4, 5]],
        ((0), (3, 2), (1, 3)): [[0, 3], [1, 4], [2, 5]],  # saved after a transposition
        ((2), (2,), (2,)): [2, 4],
        ((5), (), ()): 5,
        ((0), (0, 3), (3, 1)): np.zeros((0, 3)),
    }
    for (offset, size, stride), expected in cases.items():
        path = write_zip(tmp_path / "a.bin", state(offset=offset, size=size, stride=stride), {"0": SIX})
        tensor = read_tensors(path)["x"]
        assert tensor.dtype == "float32"
        np.testing.assert_array_equal(tensor.values, expected)
        assert tensor.values.shape == size


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"offset": 1}, "reaches beyond"),
        ({"size": (3, 3)}, "beyond"),
        ({"stride": (4, 1)}, "beyond"),
        ({"size": (100, 100), "stride": (0, 0)}, "larger than its storage"),  # a bomb of repeated elements
        ({"size": (-1, 3)}, "a shape that is none"),
        ({"numel": 7}, "has 6 elements and not 7"),
        ({"type": "DoubleStorage", "numel": 3, "size": (3, 1)}, "beyond"),
        ({"key": "9"}, "data/9"),
        ({"type": "QInt8Storage"}, "torch.QInt8Storage"),
    ],
)
def test_a_tensor_that_its_storage_does_not_hold_is_refused(tmp_path, changes, said):
    assert said in refused(write_zip(tmp_path / "a.bin", state(**changes), {"0": SIX}))


class Attack:
    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
@pytest.mark.parametrize(
    ("attack", "name"),
    [
        (Attack(os.system, "touch /tmp/diversed-was-here"), "system"),
        (Attack(eval, "RAN.append(1)"), "eval"),
        (Attack(RAN.append, 1), "getattr"),
        (Attack(bytearray, 10), "bytearray"),
    ],
)
def test_a_pickle_that_calls_something_is_refused_by_name_and_not_run(tmp_path, attack, name, protocol):
    for content in (attack, {"summary.weight": attack}, OrderedDict(a=1, b=[attack])):
        message = refused(write_zip(tmp_path / "a.bin", pickle.dumps(content, protocol)))
        assert "refused: its pickle" in message
        assert "asks for" in message
        assert name in message
    assert not Path("/tmp/diversed-was-here").exists()


def test_harmless_names_cannot_be_bent_by_a_later_instruction(tmp_path):
    """BUILD sets attributes of what lies below it: neither ours nor the interpreter's may change."""
    for name in ("torch._utils\n_rebuild_tensor_v2", "collections\nOrderedDict", "torch\nFloatStorage"):
        code = b"\x80\x02c" + name.encode() + b"\nN}X\x08\x00\x00\x00__call__K\x01s\x86b."
        refused(write_zip(tmp_path / "a.bin", code))
    np.testing.assert_array_equal(
        read_tensors(write_zip(tmp_path / "b.bin", state(), {"0": SIX}))["x"].values[1], [3, 4, 5]
    )


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (b"", "not a dictionary of tensors"),
        (b"\x80\x02", "not a dictionary"),
        (b"\x80\x02}.", None),
        (b"\x80\x02]q\x00.", "holds a list"),
        (b"\x80\x02}K\x01K\x02s.", "by name"),
        (b"\x80\x02}X\x01\x00\x00\x00aK\x02s.", "'a', which is a int"),
        (b"\x80\x02tRb.", "not a dictionary of tensors"),
        (b"\x80\x02)q\x00ctorch._utils\n_rebuild_tensor_v2\n)R.", "not a dictionary of tensors"),
        (b"\x80\x02}r\xff\xff\xff\x7f.", "more memory"),
        (b"\x80\x02cos\nsystem\n.", "'os.system'"),
        (b"cbuiltins\nexec\n(S'1'\ntR.", "'builtins.exec'"),
        (b"\x80\x04\x8c\x02os\x8c\x06system\x93.", "'os.system'"),
        (b"\x80\x02" + os.urandom(64), None),
    ],
)
def test_a_pickle_that_is_no_dictionary_of_tensors_is_one_line(tmp_path, code, said):
    path = write_zip(tmp_path / "a.bin", code)
    if code == b"\x80\x02}.":
        assert read_tensors(path) == {}
    else:
        assert (said or "") in refused(path)


def test_what_is_no_file_of_torch_is_one_line(tmp_path):
    good = write_zip(tmp_path / "good.bin", state(), {"0": SIX}).read_bytes()
    bad = tmp_path / "bad.bin"
    assert "No such file" in refused(bad)
    for content in (b"", b"\x80\x02", good[:-30], good[: len(good) // 2], pickle.dumps({})):
        bad.write_bytes(content)
        assert "cut off, damaged" in refused(bad)
    bad.write_bytes(good.replace(SIX, SIX[:-1] + b"\xff"))  # the checksum tells
    assert "cut off, damaged" in refused(bad)
    write_zip(bad, state(), {"0": SIX}, zipfile.ZIP_DEFLATED)
    assert "compressed" in refused(bad)
    with zipfile.ZipFile(bad, "w") as archive:
        archive.writestr("a/readme", "")
    assert "one data.pkl" in refused(bad)
    with zipfile.ZipFile(bad, "w") as archive:
        archive.writestr("a/data.pkl", state())
        archive.writestr("a/byteorder", "big")
    assert "big-endian" in refused(bad)
    assert "read" in refused(tmp_path)


def example() -> dict[str, Tensor]:
    rng = np.random.default_rng(0)
    tensors = {
        name: Tensor(dtype, rng.integers(0, 2, (3, 5)).astype(carrier) if dtype == "bool"
                     else np.frombuffer(rng.bytes(15 * carrier.itemsize), carrier).reshape(3, 5))
        for name, (dtype, carrier) in STORAGES.items()
    }  # fmt: skip
    tensors["scalar"] = Tensor("float32", np.array(1.5, np.float32))
    tensors["empty"] = Tensor("float16", np.zeros((0, 2), np.float16))
    tensors["ünï"] = Tensor("int64", np.arange(300)[::3])
    return tensors


def test_what_is_written_is_read_again_bit_by_bit(tmp_path):
    write_tensors(tmp_path / "a.bin", example())
    back = read_tensors(tmp_path / "a.bin")
    assert list(back) == list(example())
    for name, tensor in example().items():
        assert back[name].dtype == tensor.dtype
        assert back[name].values.shape == tensor.values.shape
        assert back[name].values.tobytes() == tensor.values.tobytes()
    first = (tmp_path / "a.bin").read_bytes()
    write_tensors(tmp_path / "a.bin", back)
    assert (tmp_path / "a.bin").read_bytes() == first
    assert [file.name for file in tmp_path.iterdir()] == ["a.bin"]


@pytest.mark.torch
@pytest.mark.parametrize("mmap", [False, True])
def test_torch_reads_what_is_written(tmp_path, mmap):
    import torch

    write_tensors(tmp_path / "a.bin", example())
    theirs = torch.load(tmp_path / "a.bin", weights_only=True, mmap=mmap)
    assert list(theirs) == list(example())
    for name, tensor in example().items():
        assert str(theirs[name].dtype) == f"torch.{tensor.dtype}"
        assert tuple(theirs[name].shape) == tensor.values.shape
        bits = theirs[name].contiguous().flatten().view(torch.uint8).numpy().tobytes()
        assert bits == tensor.values.tobytes()


@pytest.mark.torch
def test_what_torch_writes_is_read(tmp_path):
    import torch

    shared = torch.randn(4, 6)
    module = torch.nn.Linear(3, 2)
    saved = {
        "bfloat": torch.randn(5, 7, dtype=torch.bfloat16), "transposed": shared.T, "row": shared[1], "whole": shared,
        "bool": torch.tensor([True, False]), "parameter": torch.nn.Parameter(torch.ones(2)), "long": torch.arange(9),
        **module.state_dict(),
    }  # fmt: skip
    for content in (saved, OrderedDict(saved), module.state_dict()):
        torch.save(content, tmp_path / "a.bin")
        read = read_tensors(tmp_path / "a.bin")
        assert list(read) == list(content)
        for name, tensor in content.items():
            expected = tensor.detach().contiguous().view(torch.int16 if name == "bfloat" else tensor.dtype).numpy()
            assert read[name].values.tobytes() == expected.tobytes()
            assert read[name].values.shape == expected.shape
    torch.save(torch.nn.Linear(2, 2), tmp_path / "a.bin")
    assert "refused: its pickle" in refused(tmp_path / "a.bin")
    torch.save(saved, tmp_path / "a.bin", _use_new_zipfile_serialization=False)
    assert "torch 1.6" in refused(tmp_path / "a.bin")


def test_a_place_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DiversedError, match="cannot write"):
        write_tensors(tmp_path / "file" / "a.bin", example())
    assert [file.name for file in tmp_path.iterdir()] == ["file"]


def test_damage_anywhere_never_gives_anything_but_tensors_or_one_line(tmp_path):
    write_tensors(tmp_path / "good.bin", {"x": Tensor("float32", np.arange(6, dtype=np.float32))})
    with zipfile.ZipFile(tmp_path / "good.bin") as archive:
        code = archive.read("good/data.pkl")
    rng = np.random.default_rng(0)
    for _ in range(400):
        broken = bytearray(code)
        broken[rng.integers(len(broken))] = rng.integers(256)
        path = write_zip(tmp_path / "bad.bin", bytes(broken), {"0": SIX})
        try:
            read = read_tensors(path)
        except DiversedError as error:
            assert "\n" not in str(error)  # noqa: PT017
        else:
            assert all(isinstance(tensor, Tensor) for tensor in read.values())
