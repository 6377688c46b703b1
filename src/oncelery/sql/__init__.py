"""Effects in your SQL database, exactly once; for psycopg 3 and SQLAlchemy 2."""
