"""Lists the public names for plugins that write files, each with its module."""

from hookbus.checkpoint.files import check_no_link as check_no_link
from hookbus.checkpoint.files import discard as discard
from hookbus.checkpoint.files import replacing as replacing
from hookbus.logs import shown as shown
