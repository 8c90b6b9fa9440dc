"""Discovery: operators from folders, inside the package and outside it, and what their implementations say of
themselves.
"""

from opforge.registry.definition_checks import fits as fits
from opforge.registry.discovery import Home as Home, Registry as Registry, find_operator as find_operator, load as load
from opforge.registry.implementation_files import read_implementation as read_implementation
