"""The reading API: stored runs without their program. What writes, and what needs DSPy, does not belong here."""
