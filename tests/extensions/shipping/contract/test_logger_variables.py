"""Which environment variables verl's loggers read."""

import inspect
import re

from verl.utils import tracking as verls

from recipe.async_dapo.extensions.shipping import logger_variables

SECRETS = {"SWANLAB_API_KEY", "VOLC_ACCESS_KEY_ID", "VOLC_SECRET_ACCESS_KEY"}


def test_each_variable_that_verls_loggers_read_is_sent_to_the_node_that_has_them_or_is_a_secret():
    source = inspect.getsource(verls)
    read = set(re.findall(r'(?:environ\.get\(|environ\[|getenv\(|_ENV = )"([A-Z_]+)"', source))
    sent = {*logger_variables.PLAIN, *logger_variables.FOLDERS, *logger_variables.ADDRESSES}
    assert "SWANLAB_LOG_DIR" in read and read - sent == SECRETS
