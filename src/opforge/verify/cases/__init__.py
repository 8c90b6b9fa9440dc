"""What is asked: an operator's own cases, hidden ones, those that an implementation's statements call for; memory
filled and kept.
"""
