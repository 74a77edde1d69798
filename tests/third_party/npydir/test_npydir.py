from ckptio.testing import FormatContract


class TestNpydir(FormatContract):
    format_name = "npydir"
