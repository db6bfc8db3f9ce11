"""Recognises an id at the start of a JSON part: there clients put it, and nothing else of the JSON changes with it."""

from __future__ import annotations

import re

ID_AT_START = re.compile(rb'\{"id": ?"([ !#-\[\]-~]{1,128})", ?(?=")')
"""The id, of printable ASCII without escapes; the match ends before the next key."""
ANY_ID = re.compile(rb'"id"[ \t\r\n]*:|\\')
"""A JSON part that has an id, perhaps an empty one, contains one of these. Only those without are remembered as they are: with an
id before it, such a JSON part would have two."""
SECOND_ID = re.compile(rb'"id"|\\')
"""A second id behind the first contains one of these. The last id counts, so such JSON parts are not remembered."""
