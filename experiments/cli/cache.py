"""dtypelab cache."""

from __future__ import annotations

import click

from .common import say


@click.command(short_help="The object code kept on disk.")
@click.option("--clear", is_flag=True, help="Remove it.")
def cache(clear: bool) -> None:
    """Show where compiled code is kept and how much there is, or remove it.

    The environment variable DTYPELAB_CACHE_DIR chooses the folder; 0 turns the cache off.

    Example: dtypelab cache --clear
    """
    from compiler.codegen import cache as objects

    where = objects.folder()
    if where is None:
        say("the cache is off")
    elif clear:
        say(f"{where}: {objects.clear()} entries removed")
    else:
        count, size = objects.usage()
        say(f"{where}: {count} entries, {size / 2**20:.1f} MiB")
