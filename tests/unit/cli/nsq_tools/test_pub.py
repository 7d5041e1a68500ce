import pytest

from martlet.cli.nsq_tools.pub import body_of
from martlet.client import ClientError


def test_the_body_of_a_dead_letter() -> None:
    assert body_of(b'{"offset":1,"body_base64":"aGVsbG8="}') == b"hello"


@pytest.mark.parametrize(
    "line", [b"", b"hello", b"{}", b"[]", b'{"body_base64":3}', b'{"body_base64":"?"}']
)
def test_a_line_that_is_no_dead_letter_is_refused(line: bytes) -> None:
    with pytest.raises(ClientError, match="is no line of dead letters"):
        body_of(line)
