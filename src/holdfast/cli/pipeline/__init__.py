"""`holdfast pipeline`: data pipelines on Spark, one command each."""
