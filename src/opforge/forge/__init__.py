"""New operators: a folder that runs as it stands, from a name, a formula or a definition."""

from opforge.forge.generate import explained as explained, files_of as files_of, generate as generate
from opforge.forge.program.definition import (
    Definition as Definition,
    from_formula as from_formula,
    number_of as number_of,
    read_definition as read_definition,
)
from opforge.forge.read.documents import read_document as read_document
from opforge.forge.read.linalg import read_linalg as read_linalg
from opforge.forge.write.new import create as create
