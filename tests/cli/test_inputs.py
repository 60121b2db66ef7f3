"""The command and what it reads: limits and shards, lists, Parquet, names of any bytes."""

from __future__ import annotations

import json
import os
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from commands import failed_ids_of, ids_of, run_vdali
from pictures import encoded
from vdali.engine.sources.ids import bytes_from_id


def test_limit_and_shard_choose_and_say_so(vdali, tmp_path, model, pictures):
    assert "4 rows" in vdali("run", pictures, "-m", model, "-o", "few", "--limit", 4).err
    assert len(ids_of(tmp_path / "few")) == 4
    seen = []
    for shard in ("0/3", "1/3", "2/3"):
        out = f"out-{shard[0]}"
        document = json.loads(vdali("run", pictures, "-m", model, "-o", out, "--shard", shard, "--json").out)
        assert document["session"]["source"].endswith(f"shard {shard}")
        seen += [*ids_of(tmp_path / out), *failed_ids_of(tmp_path / out)]
    assert sorted(seen) == sorted(os.listdir(pictures))


def test_an_empty_shard_is_no_error(vdali, tmp_path, model, pictures):
    (tmp_path / "in").mkdir()
    shutil.copy(pictures / "0000.jpg", tmp_path / "in")
    statuses = [vdali("run", "in", "-m", model, "-o", f"out-{i}", "--shard", f"{i}/4").status for i in range(4)]
    assert statuses == [0] * 4
    assert sum(len(ids_of(tmp_path / f"out-{i}")) for i in range(4)) == 1


def test_npy_holds_the_same_vectors_as_parquet(vdali, tmp_path, model, pictures):
    assert vdali("run", pictures, "-m", model, "-o", "a").status == 0
    assert vdali("run", pictures, "-m", model, "-o", "b", "--format", "npy", "--part-rows", 10).status == 0
    table = pq.read_table(tmp_path / "a" / "rows")
    files = sorted((tmp_path / "b" / "rows").glob("*.embedding.npy"))
    ids = [pq.read_table(file.with_name(f"{file.name[:10]}.ids.parquet"))["id"].to_pylist() for file in files]
    assert len(files) > 1
    assert np.array_equal(np.concatenate([np.load(file) for file in files]), np.array(table["embedding"].to_pylist()))
    assert [name for part in ids for name in part] == table["id"].to_pylist()


def test_lists_are_read_with_the_columns_and_root_that_are_named(vdali, tmp_path, model, pictures):
    (tmp_path / "list.csv").write_text("where,key\n0000.jpg,a\n0001.png,b\n")
    words = ("run", "list.csv", "-m", model, "-o", "out", "--root", pictures, "--path-column", "where")
    assert vdali(*words, "--id-column", "key").status == 0
    assert ids_of(tmp_path / "out") == ["a", "b"]
    for other in (words, (*words[:6], "--path-column", "where", "--id-column", "key")):
        ended = vdali(*other)
        assert ended.status == 6
        assert "reading: " in ended.err


def test_a_list_under_any_name_is_read_when_its_kind_is_told(vdali, tmp_path, model, pictures):
    (tmp_path / "names").write_text(f"{pictures}/0000.jpg\n{pictures}/0001.png\n")
    assert vdali("run", "names", "-m", model, "-o", "out").status == 2
    assert vdali("run", "names", "--kind", "list", "-m", model, "-o", "out").status == 0
    assert len(ids_of(tmp_path / "out")) == 2


def test_parquet_with_images_is_read(vdali, tmp_path, model, pictures):
    names = sorted(os.listdir(pictures))[:5]
    table = pa.table({"name": names, "image": [(pictures / name).read_bytes() for name in names]})
    pq.write_table(table, tmp_path / "images.parquet")
    assert vdali("run", "images.parquet", "--id-column", "name", "-m", model, "-o", "out").status == 0
    assert ids_of(tmp_path / "out") == names


def test_names_of_any_bytes_come_back_from_their_ids(tmp_path, model):
    folder = os.fsencode(tmp_path / "in")
    os.mkdir(folder)
    names = [b"new\nline.png", "smile \N{GRINNING FACE}.png".encode(), b"\xff\xfe.png", b"back\\slash.png", b"-o.png"]
    names += [b"a::b.png", b"\x1b[31m.png", b" .png", b"%41{}.png"]
    for name in names:
        with open(os.path.join(folder, name), "wb") as file:
            file.write(encoded(3, "PNG", (9, 9)))
    with open(os.path.join(folder, b"bad\xff.png"), "wb") as file:
        file.write(b"<html>")
    out = tmp_path / "out"
    done = run_vdali(
        "run", tmp_path / "in", "-m", model, "-o", out, "--max-failures", 1, env=os.environ | {"LC_ALL": "C"}
    )
    assert done.returncode == 0, done.stderr
    assert sorted(bytes_from_id(sample_id) for sample_id in ids_of(out)) == sorted(names)
    assert [bytes_from_id(sample_id) for sample_id in failed_ids_of(out)] == [b"bad\xff.png"]


def test_an_input_folder_of_any_name_is_read_and_an_output_folder_must_be_utf_8(tmp_path, model):
    folder = os.fsencode(tmp_path) + b"/in\xff"
    os.mkdir(folder)
    with open(folder + b"/a.png", "wb") as file:
        file.write(encoded(3, "PNG", (9, 9)))
    done = run_vdali("run", folder, "-m", model, "-o", tmp_path / "out", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["session"]["source"].endswith("in\\xff")
    refused = run_vdali("run", folder, "-m", model, "-o", os.fsencode(tmp_path) + b"/out\xff")
    assert refused.returncode == 2
    assert "not UTF-8" in refused.stderr
    assert sorted(os.listdir(os.fsencode(tmp_path))) == [b"in\xff", b"out"]
