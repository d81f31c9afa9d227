"""The fault campaign: tries to break cclfp, and writes down in RELIABILITY.md what happened.

``python -m torture`` (``make torture``) kills processes, damages files, fills disks, sends signals and takes memory,
descriptors and locales away. One module per kind of fault; ``campaign.py`` has what they share. It needs Linux.
"""
