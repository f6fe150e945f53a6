"""The data source that `format("holdfast")` names: its options, its columns, its readers and its writers.

Spark imports this in several short processes before the first row, of which one needs a reader or a writer. So those
are imported where they are made.
"""

from __future__ import annotations

from functools import cached_property

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from holdfast.spark.errors import BadOption, with_code
from holdfast.spark.options import SourceOptions, parse_options
from holdfast.spark.schema import check_user_schema, source_schema
from holdfast.spark.sink_options import check_columns, parse_sink_options


class HoldfastSource(DataSource):
    """Spark makes one for each query, in a process of its own."""

    @classmethod
    def name(cls) -> str:
        return "holdfast"

    @cached_property
    def source_options(self) -> SourceOptions:
        return parse_options(dict(self.options))

    def schema(self) -> StructType | str:
        options = self.source_options
        return source_schema(options.value_schema, with_headers=options.include_headers)

    def reader(self, schema: StructType) -> DataSourceReader:
        from holdfast.spark.filters import FilteredBatchReader
        from holdfast.spark.source_batch import BatchReader

        options = self.source_options
        check_user_schema(schema, is_value_json=options.value_schema is not None)
        return (FilteredBatchReader if options.push_filters else BatchReader)(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from holdfast.spark.source_stream import StreamReader

        options = self.source_options
        check_user_schema(schema, is_value_json=options.value_schema is not None)
        return StreamReader(options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from holdfast.spark.sink import BatchWriter

        options = parse_sink_options(dict(self.options))
        if overwrite:
            raise with_code(BadOption, 'a log is only ever appended to; write with mode("append")')
        check_columns(schema, options)
        return BatchWriter(options)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from holdfast.spark.sink import StreamWriter

        options = parse_sink_options(dict(self.options))
        if options.writer_batch is not None:
            raise with_code(BadOption, "writerBatch is for jobs: a query numbers its batches itself")
        check_columns(schema, options)
        return StreamWriter(options)
