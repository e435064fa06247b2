"""tf.train.Examples: the records of ArrayRecord files, read and written without TensorFlow."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

KINDS = {"bytes_list": "TYPE_BYTES", "float_list": "TYPE_FLOAT", "int64_list": "TYPE_INT64"}


@functools.cache
def example_class() -> Any:
    """Returns protobuf's class of tensorflow/core/example/example.proto, under another name than TensorFlow's own."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    file, kinds = descriptor_pb2.FileDescriptorProto(name="limba/example.proto", package="limba", syntax="proto3"), {}
    for name in ("Example", "Features", "Feature"):
        kinds[name] = file.message_type.add(name=name)
    of_field = descriptor_pb2.FieldDescriptorProto

    def add(kind: Any, name: str, number: int, type_name: str, label: str = "LABEL_OPTIONAL", **more: Any) -> None:
        kind.field.add(
            name=name, number=number, label=getattr(of_field, label), type=of_field.TYPE_MESSAGE,
            type_name=f".limba.{type_name}", **more,
        )  # fmt: skip

    kinds["Feature"].oneof_decl.add(name="kind")
    for number, (name, kind) in enumerate(KINDS.items(), 1):
        values = file.message_type.add(name=name)
        values.field.add(name="value", number=1, label=of_field.LABEL_REPEATED, type=getattr(of_field, kind))
        add(kinds["Feature"], name, number, name, oneof_index=0)
    entry = kinds["Features"].nested_type.add(name="FeatureEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, label=of_field.LABEL_OPTIONAL, type=of_field.TYPE_STRING)
    add(entry, "value", 2, "Feature")
    add(kinds["Features"], "feature", 1, "Features.FeatureEntry", "LABEL_REPEATED")
    add(kinds["Example"], "features", 1, "Features")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("limba.Example"))


def features_of(record: bytes) -> Mapping[str, Any]:
    """Returns the features of a record; an error of protobuf where it is none."""
    return example_class().FromString(record).features.feature
