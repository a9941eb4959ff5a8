"""Reads manifests (YAML) and checks their objects against Kubernetes' schemas.

    check.py VERSION FILE ...

Prints a line of JSON for each file: a list of objects, each with "object" and "error". The error is null if
the object matches the schema of this version of Kubernetes, which allows no unknown fields. Objects of the
Prometheus Operator are not checked here.
"""

import functools
import json
import sys

import jsonschema
import yaml
from kubernetes_validate import utils
from referencing import Registry, Resource

OPERATOR = "monitoring.coreos.com/"


@functools.cache
def read(version, name):
    return utils.schema_contents(f"kubernetes-json-schema/v{version}.0-local-strict/{name}.json", version)


@functools.cache
def definitions(version):
    return Resource.from_contents(read(version, "_definitions")) @ Registry()


@functools.cache
def validator(version, kind, api):
    group, _, api_version = api.rpartition("/")
    name = "-".join(part for part in (kind.lower(), group.split(".")[0], api_version) if part)
    return jsonschema.Draft202012Validator(read(version, name), registry=definitions(version))


def error(version, value):
    if value["apiVersion"].startswith(OPERATOR):
        return None
    try:
        errors = validator(version, value["kind"], value["apiVersion"]).iter_errors(value)
    except FileNotFoundError:
        return f"no schema for {value['kind']}"
    first = jsonschema.exceptions.best_match(errors)
    return first and f"{'/'.join(map(str, first.absolute_path))}: {first.message}"


for path in sys.argv[2:]:
    with open(path, encoding="utf-8") as file:
        objects = [value for value in yaml.safe_load_all(file) if value]
    print(json.dumps([{"object": value, "error": error(sys.argv[1], value)} for value in objects]))
