"""`python -m server.openapi` prints the API's OpenAPI document, from which the UI's types are generated."""

import json

from server.app import create_app

if __name__ == "__main__":
    print(json.dumps(create_app().openapi(), indent=1))
