"""The operator's page in a browser, and figures for Prometheus."""
