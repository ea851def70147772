"""Options are read once, and each wrong one is one clear sentence."""

import pytest

from libramq.errors import ConfigError
from libramq.spark.options import SourceOptions


def test_names_in_any_case():
    """Spark hands over a mapping whose plain copy has lower-case names."""
    options = SourceOptions.parse({"SUBSCRIBE": "B, A,B", "maxoffsetspertrigger": "5", "NameSrv": "h:1;i:2"})
    assert options.topics == ("A", "B")
    assert options.max_offsets_per_trigger == 5
    assert options.namesrv == ("h:1", "i:2")


def test_defaults(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)
    options = SourceOptions.parse({"subscribe": "T"})
    assert options.namesrv == ("127.0.0.1:9876",)
    assert (options.fail_on_data_loss, options.include_body, options.include_properties) == (
        True,
        True,
        False,
    )
    monkeypatch.setenv("NAMESRV_ADDR", "ns:9876")
    assert SourceOptions.parse({"subscribe": "T"}).namesrv == ("ns:9876",)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({}, "subscribe"),
        ({"subscribe": " , "}, "no topic"),
        ({"subscribe": "../x"}, r"\.\./x"),
        ({"subscribe": "T", "startingOffset": "earliest"}, "did you mean startingOffsets"),
        ({"subscribe": "T", "path": "/data"}, "there are: subscribe"),
        ({"subscribe": "T", "maxOffsetsPerTrigger": "0"}, "maxOffsetsPerTrigger='0'"),
        ({"subscribe": "T", "maxOffsetsPerTrigger": "many"}, "maxOffsetsPerTrigger='many'"),
        ({"subscribe": "T", "failOnDataLoss": "no"}, "failOnDataLoss='no': give true or false"),
        ({"subscribe": "T", "startingOffsets": "first"}, "startingOffsets='first'"),
        ({"subscribe": "T", "endingOffsets": "earliest"}, "would read nothing"),
        ({"subscribe": "T", "namesrv": "nonsense"}, "'nonsense' is not an address"),
    ],
)
def test_wrong_ones(given: dict[str, str], says: str):
    with pytest.raises(ConfigError, match=says):
        SourceOptions.parse(given)
