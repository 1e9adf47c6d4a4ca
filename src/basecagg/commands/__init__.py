"""The subcommands of `basecagg`, one file each, imported only when used."""
