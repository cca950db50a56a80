# Shaped after Flask's documentation: Background Tasks with Celery.
from site_app import create_app

web_app = create_app()
celery_app = web_app.extensions["celery"]
