"""Modules that tests of several folders share."""
