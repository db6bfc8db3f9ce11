"""Any contents for any protobuf message, for hypothesis."""

from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from hypothesis import strategies as st

SCALARS = {
    FieldDescriptor.TYPE_BOOL: st.booleans(),
    FieldDescriptor.TYPE_BYTES: st.binary(max_size=8),
    FieldDescriptor.TYPE_DOUBLE: st.floats(),
    FieldDescriptor.TYPE_FLOAT: st.floats(width=32),
    FieldDescriptor.TYPE_INT32: st.integers(-(2**31), 2**31 - 1),
    FieldDescriptor.TYPE_INT64: st.integers(-(2**63), 2**63 - 1),
    FieldDescriptor.TYPE_STRING: st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
    FieldDescriptor.TYPE_UINT32: st.integers(0, 2**32 - 1),
    FieldDescriptor.TYPE_UINT64: st.integers(0, 2**64 - 1),
}


def contents_of(message: Any) -> st.SearchStrategy[dict[str, Any]]:
    """Keyword arguments for a message: any of its fields, and in them the same for their messages."""
    return st.fixed_dictionaries({}, optional={field.name: _values_of(field) for field in message.fields})


def _values_of(field: Any) -> st.SearchStrategy[Any]:
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        key, value = field.message_type.fields
        return st.dictionaries(_value_of(key), _value_of(value), max_size=3)
    return st.lists(_value_of(field), max_size=3) if field.is_repeated else _value_of(field)


def _value_of(field: Any) -> st.SearchStrategy[Any]:
    if field.enum_type is not None:
        return st.sampled_from(sorted(field.enum_type.values_by_number))
    return SCALARS[field.type] if field.message_type is None else contents_of(field.message_type)
