"""Traces that leave the process: the spans of OpenTelemetry, made by layers."""
