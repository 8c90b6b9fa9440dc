"""Discovery: operators from folders, inside the package and outside it, and what their implementations say of themselves."""

from opforge.registry.definitions import fits as fits
from opforge.registry.discovery import Home as Home, Registry as Registry, load as load
from opforge.registry.sources import read_implementation as read_implementation
