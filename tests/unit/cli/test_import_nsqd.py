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
