"""New operators: a folder that runs as it stands."""

from opforge.forge.new import create as create
