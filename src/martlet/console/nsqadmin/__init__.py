"""nsqadmin's HTTP API, which is answered beside the pages."""
