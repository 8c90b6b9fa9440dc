"""New operators: a folder that runs as it stands, from a name, a formula or a definition."""

from opforge.forge.definition import (
    Definition as Definition,
    from_formula as from_formula,
    number_of as number_of,
    read_definition as read_definition,
)
from opforge.forge.generate import explained as explained, files_of as files_of, generate as generate
from opforge.forge.linalg import read_linalg as read_linalg
from opforge.forge.new import create as create
from opforge.forge.read_document import read_document as read_document
