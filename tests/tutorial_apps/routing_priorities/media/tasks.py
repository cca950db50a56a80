from .celery import app


@app.task
def import_feed(url):
    return url


@app.task(priority=9)
def resize(path, width):
    return [path, width]


@app.task
def resize_all(paths, width):
    for path in paths:
        resize.apply_async((path, width), priority=2)


@app.task(queue="default", expires=600)
def publish(post_id):
    return post_id
