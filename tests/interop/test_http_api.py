"""The OpenAPI document, checked against a real broker by schemathesis, and who may use its routes."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis import openapi
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)
from tests.interop.auth_server import Answer, AuthServer, allowed
from tests.interop.http_client import HttpClient
from tests.interop.operator_routes import other_address, status

from martlet.testing import BrokerProcess

pytestmark = pytest.mark.interop
