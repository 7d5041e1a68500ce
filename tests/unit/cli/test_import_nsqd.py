"""The flags of ``martlet import-nsqd``."""

import pytest

from martlet.cli.import_nsqd import main


@pytest.mark.parametrize("size", ["2MiB", "2097152", "2m"])
def test_sizes_have_units_as_other_flags_have(
    size: str, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = [f"--max-bytes-per-file={size}", f"--min-free-bytes={size}"]
    assert main(["/none", "--data-path=/nowhere", *flags]) == 1
    assert "/none" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flag", "why"),
    [
        ("--max-bytes-per-file=2miles", "'2miles' is not a size; write bytes, or 64KiB"),
        ("--max-bytes-per-file=4095", "'4095' is not between 4KiB and 1TiB"),
        ("--min-free-bytes=2TiB", "'2TiB' is not between 4KiB and 1TiB"),
    ],
)
def test_other_sizes_are_refused(flag: str, why: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["/none", "--data-path=/nowhere", flag])
    assert ended.value.code == 2
    assert why in capsys.readouterr().err
