from fastapi import FastAPI

from worker import charge, render

web = FastAPI()


@web.post("/orders/{order}", status_code=202)
def order(order: str):
    return {"task": charge.delay(order).id}


@web.post("/renders", status_code=202)
def start_render(body: dict):
    return {"task": render.delay(**body).id}
