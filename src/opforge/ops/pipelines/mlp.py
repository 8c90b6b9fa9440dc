"""The MLP of a GPT-2 block: widen, GELU, narrow, add what came in, normalise."""

from opforge.core.definition.pipeline import Pipeline, PipelineCase, Stage

pipeline = Pipeline(
    name="mlp",
    about="linear, gelu by tanh, linear, the residual added, layer norm",
    stages=(
        Stage(name="wide", operator="linear", axes={"rows": ("rows",), "n": "hidden", "k": "width"}, inputs={"x": "x"}),
        Stage(
            name="active",
            operator="gelu",
            axes={"shape": ("rows", "hidden")},
            inputs={"x": "wide"},
            scalars={"approximate": "tanh"},
        ),
        Stage(
            name="narrow",
            operator="linear",
            axes={"rows": ("rows",), "n": "width", "k": "hidden"},
            inputs={"x": "active"},
        ),
        Stage(name="sum", operator="vector_add", axes={"shape": ("rows", "width")}, inputs={"x": "narrow", "y": "x"}),
        Stage(name="y", operator="layernorm", axes={"lead": ("rows",), "cols": "width"}, inputs={"x": "sum"}),
    ),
    cases=(
        PipelineCase(name="whole", axes={"rows": 16, "width": 64, "hidden": 128}, why="whole blocks"),
        PipelineCase(name="odd", axes={"rows": 7, "width": 65, "hidden": 131}, why="one past blocks at every stage"),
    ),
)
