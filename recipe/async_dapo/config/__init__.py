"""The options: their defaults in yaml, fields and meaning in `options`, errors and types of values in `values`."""
