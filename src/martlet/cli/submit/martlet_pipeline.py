"""The jobs for spark-submit, which needs a file: ``spark-submit martlet_pipeline.py NAME ...``.

``martlet pipeline --submit-file`` prints its path.
"""

import sys

from martlet.cli.pipeline import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
