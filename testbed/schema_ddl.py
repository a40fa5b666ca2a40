"""Prints the declared schema as SQL, statements parted by `;;`, for a new migration to freeze (`make ddl`)."""

from stratus.store.ddl import statements

if __name__ == "__main__":
    print("\n;;\n".join(statements()))
