"""x"""


def from_callback(): ...
