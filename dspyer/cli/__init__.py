"""The command `dspyer`: parsing, printing, and one function for each command, which calls `Archive` or `Thread`.

Nothing here decides about runs or reads rows. Modules at the top import no DSPy: `dspyer --help` and the commands that
only read must start at once; what acts imports `programs` in its function.
"""
