"""The end of a language model: RMS norm, the vocabulary's product, softmax."""

from opforge.core.definition.pipeline import Pipeline, PipelineCase, Stage

pipeline = Pipeline(
    name="classifier",
    about="RMS norm, product with the vocabulary, softmax",
    stages=(
        Stage(name="normed", operator="rmsnorm", axes={"lead": ("rows",), "cols": "width"}),
        Stage(name="logits", operator="matmul", axes={"m": "rows", "n": "words", "k": "width"}, inputs={"a": "normed"}),
        Stage(name="y", operator="softmax", axes={"lead": ("rows",), "cols": "words"}, inputs={"x": "logits"}),
    ),
    cases=(
        PipelineCase(name="whole", axes={"rows": 16, "width": 64, "words": 256}, why="whole blocks"),
        PipelineCase(name="odd", axes={"rows": 5, "width": 67, "words": 259}, why="one past blocks at every stage"),
    ),
)
