"""The fault campaign: tries to break cclfp, and reports the outcome in RELIABILITY.md.

``python -m torture`` (``make torture``) kills processes, lets every operation on files fail once, damages files, fills
disks, sends signals, limits memory and file descriptors, and changes locales. There is one module per group of faults;
``campaign.py`` has what they share. It needs Linux.
"""
