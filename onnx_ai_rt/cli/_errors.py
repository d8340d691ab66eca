"""What a subcommand raises for a mistake of the caller."""


class CommandError(Exception):
    """Its text is shown without a traceback."""
