"""Problems and rows: read, converted, checked."""
