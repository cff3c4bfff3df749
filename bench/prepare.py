"""Measures `prepare`: `python bench/prepare.py [--quick] [--ray] [--text FOLDER] [--json PATH]`.

`--text` is a folder of Parquet files with a column `text`; unless given, Python sources of this machine are taken.
`--quick` takes little text and few repetitions, and enforces nothing. Exit status 1 if a bar is missed.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import tokenfeed
from measure import Report, interleave
from text import find_text, find_tokenizer
from tokenfeed.preparation import Report as Progress
from tokenfeed.text.sources.files import TextFiles

WORKERS = 2

# What a worker does of the least there is to do: start, load the tokenizer, read its texts, encode them. No store.
_ENCODE = """
import sys, time
began = time.perf_counter()
import tokenfeed
from tokenfeed.text.sources.files import TextFiles
folder, tokenizer, number, count = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
tokenizer = tokenfeed.Tokenizer.load(tokenizer)
bos, encoding = tokenizer.bos_id, 0.0
for group in TextFiles.find(folder).iter_row_groups(start=number, step=count):
    texts = [text for text in group if text is not None]
    begin = time.perf_counter()
    tokenizer.encode_batch(texts, threads=1, prepend=bos)
    encoding += time.perf_counter() - begin
print(encoding)
"""


def encode(folder: Path, tokenizer: Path) -> tuple[float, float]:
    """Seconds of two processes that encode all texts and do no more: from their start on, and of encoding alone."""
    environment = {**os.environ, "RAYON_NUM_THREADS": "1"}
    began = time.perf_counter()
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", _ENCODE, str(folder), str(tokenizer), str(number), str(WORKERS)],
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for number in range(WORKERS)
    ]
    encoding = max(float(process.communicate()[0]) for process in processes)
    return time.perf_counter() - began, encoding


def prepare(folder: Path, tokenizer: Path, **options: object) -> tuple[float, float]:
    """Seconds of `prepare`: from its start on, and from the moment when its workers had begun."""
    out = Path(tempfile.mkdtemp(prefix="tokenfeed-bench-")) / "store"
    first: list[tuple[float, int]] = []

    def note(report: Progress) -> None:
        if not first:
            first.append((time.perf_counter(), report.made_counts.input_bytes))

    began = time.perf_counter()
    try:
        report = tokenfeed.prepare(folder, out, tokenizer=tokenizer, progress=note, **options)  # type: ignore[arg-type]
        end = time.perf_counter()
        share = 1 - first[0][1] / report.num_bytes  # of what was still to do then
        return end - began, (end - first[0][0]) / share if share > 0.5 else end - began
    finally:
        shutil.rmtree(out.parent)


def throughput(report: Report, folder: Path, tokenizer: Path, repetitions: int, *, with_ray: bool) -> None:
    """MB of text a second."""
    texts = (text for group in TextFiles.find(folder).iter_row_groups() for text in group if text is not None)
    megabytes = sum(len(text.encode(errors="replace")) for text in texts) / 1e6
    seconds: dict[str, list[tuple[float, float]]] = {"prepare": [], "encode": [], "ray": []}

    def measured(name: str, took: tuple[float, float]) -> float:
        seconds[name].append(took)
        return megabytes / took[0]

    contenders = {
        "prepare": lambda _: measured("prepare", prepare(folder, tokenizer, workers=WORKERS)),
        "encode": lambda _: measured("encode", encode(folder, tokenizer)),
    }
    if with_ray:
        import ray

        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
        ray.init(num_cpus=WORKERS, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
        contenders["ray"] = lambda _: measured("ray", prepare(folder, tokenizer, engine="ray"))
    for contender in contenders.values():
        contender(0)
    for taken in seconds.values():
        taken.clear()
    result = interleave(contenders, repetitions=repetitions, unit="MB/s")
    report.compare("prepare, two workers: encoding alone, two processes", result["prepare"], result["encode"], bar=0.85)
    steady = {
        name: type(result["prepare"])(tuple(megabytes / took[1] for took in taken), "MB/s")
        for name, taken in seconds.items()
        if taken
    }
    report.compare("the same without starting processes", steady["prepare"], steady["encode"])
    if with_ray:
        report.compare("Ray on this machine: local workers", result["ray"], result["prepare"], bar=0.8)


def memory(report: Report, tokenizer: Path, megabytes: int) -> None:
    """The largest that a process becomes: with many documents, and with one; and how time grows with its length."""
    text = "".join(path.read_text(errors="replace") for path in sorted(Path(os.__file__).parent.glob("*.py")))
    folder = Path(tempfile.mkdtemp(prefix="tokenfeed-bench-"))
    try:
        line = json.dumps({"text": text[:5000]}) + "\n"
        (folder / "many.jsonl").write_text(line * (megabytes * 1_000_000 // len(line)))
        times = {}
        for size in (megabytes // 4, megabytes):
            long = (text * (size * 1_000_000 // len(text) + 1))[: size * 1_000_000]
            (folder / f"one{size}.jsonl").write_text(json.dumps({"text": long}) + "\n")
        for name, size in (("many", 0), ("one", megabytes // 4), ("one", megabytes)):
            file = f"{name}{size or ''}"
            times[file], peak = in_a_process(folder / f"{file}.jsonl", tokenizer)
            what = f"process with one worker, {name} of {size or megabytes} MB"
            report.limit(what, [peak / 1e6], "MB", bar=400 + 10 * size)
        growth = times[f"one{megabytes}"] / times[f"one{megabytes // 4}"] / 4
        report.limit("time of one document: a quarter of it, times four", [growth], "×", bar=1.3)
    finally:
        shutil.rmtree(folder)


def in_a_process(file: Path, tokenizer: Path) -> tuple[float, float]:
    """Seconds of `prepare` with one worker, and the most bytes that the process had in memory."""
    code = f"""
import re, time, tokenfeed
from pathlib import Path
tokenfeed.Tokenizer.load({str(tokenizer)!r}).encode("first use")
began = time.perf_counter()
tokenfeed.prepare({str(file)!r}, {str(file.with_suffix(""))!r}, tokenizer={str(tokenizer)!r}, workers=1)
seconds = time.perf_counter() - began
print(seconds, 1024 * int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]))
"""
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    seconds, peak = map(float, done.stdout.split())
    return seconds, peak


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--ray", action="store_true", help="measure a Ray cluster on this machine, too")
    parser.add_argument("--text", type=Path)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    report = Report("prepare")
    folder = find_text(arguments.text, 4 if arguments.quick else 50)
    saved = Path(tempfile.mkdtemp(prefix="tokenfeed-bench-")) / "tokenizer.json"
    find_tokenizer(folder).save(saved)
    throughput(report, folder, saved, 2 if arguments.quick else 5, with_ray=arguments.ray)
    memory(report, saved, 20 if arguments.quick else 200)
    shutil.rmtree(saved.parent)
    report.show()
    if arguments.json:
        report.write_json(arguments.json)
    if report.missed and not arguments.quick:
        sys.exit(f"missed: {', '.join(report.missed)}")


if __name__ == "__main__":
    main()
