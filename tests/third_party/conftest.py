"""What is here is installed before it is tested: ``tests/test_third_party.py`` does both."""

collect_ignore = ["npydir"]
