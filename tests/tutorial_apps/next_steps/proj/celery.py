# Shaped after Celery's documentation: Getting Started, Next Steps.
from celery import Celery

app = Celery("proj", broker="amqp://", backend="rpc://", include=["proj.tasks"])

# The rest of the settings, all of them optional.
app.conf.update(
    result_expires=3600,
)

if __name__ == "__main__":
    app.start()
